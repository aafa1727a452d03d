"""A package index and file server on loopback, with the faults that real ones have."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """Answers each path with a function; notes what was asked."""

    def __init__(self) -> None:
        self.routes: dict[str, Answer] = {}
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                server.routes.get(self.path.split("?")[0], status(404))(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[Server]:
        """Serve until the block ends."""
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            self._http.server_close()
            thread.join()

    def offer(self, project: str, name: str, body: bytes, *, form: str = "json") -> str:
        """List a file in the index under `/simple` and serve it; returns its SHA-256."""
        digest = hashlib.sha256(body).hexdigest()
        where = f"/files/{name}"
        self.routes[where] = content(body)
        if form == "json":
            file = {"filename": name, "url": f"../..{where}", "hashes": {"sha256": digest}}
            page, kind = json.dumps({"files": [file]}).encode(), "application/vnd.pypi.simple.v1+json"
        else:
            page = f'<html><a href="../..{where}#sha256={digest}">{name}</a></html>'.encode()
            kind = "text/html"
        self.routes[f"/simple/{project}/"] = content(page, kind)
        return digest


def content(body: bytes, kind: str = "application/octet-stream") -> Answer:
    """The whole body."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


def cut(body: bytes, after: int) -> Answer:
    """A body that is announced whole and ends early."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[:after])
        request.wfile.flush()
        request.connection.close()

    return answer


def stall(body: bytes, after: int, reached: threading.Event, go: threading.Event) -> Answer:
    """A body that stops in the middle until the test says go."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[:after])
        request.wfile.flush()
        reached.set()
        go.wait(30)

    return answer


def status(code: int) -> Answer:
    """An error page."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        body = f"<html>error {code}</html>".encode()
        request.send_response(code)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


def archive(files: dict[str, bytes], *extra: tarfile.TarInfo) -> bytes:
    """A .tar.gz of these files; names ending in .sh are executable."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, body in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            info.mode = 0o775 if name.endswith(".sh") else 0o664
            tar.addfile(info, io.BytesIO(body))
        for info in extra:
            tar.addfile(info, io.BytesIO(b"x" * info.size))
    return out.getvalue()
