"""A local server that speaks the Hub's API over two ports, and can misbehave on demand.

Port one is the Hub (file lists, `resolve` with a redirect), port two the host that holds the bytes.
Everything asked is logged, so that a test can say which bytes were sent again and who saw the token.

    with HubServer() as hub:
        hub.add("org/repo", REVISION, "a.gguf", b"GGUF...")
        hub.misbehave("cut", after=1000)
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

PIECE = 64 << 10


@dataclass(frozen=True, kw_only=True)
class Content:
    """A file: bytes, or a path on disk for big ones."""

    sha256: str
    size: int
    data: bytes = b""
    path: Path | None = None

    def read(self, start: int, size: int) -> bytes:
        """At most `size` bytes from `start`."""
        if self.path is None:
            return self.data[start : start + size]
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(size)


@dataclass(kw_only=True)
class Fault:
    """One misbehaviour, used up after `times` requests it applies to."""

    kind: str
    times: int = 1
    after: int = 0
    value: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    only_ranges: bool = False


@dataclass(frozen=True, kw_only=True)
class Request:
    """What came in: `port` is "hub" or "bytes"; `range` the header; `status` what was answered."""

    port: str
    path: str
    query: str
    range: str
    authorization: str
    status: int

    @property
    def start(self) -> int:
        """First byte asked for."""
        found = re.match(r"bytes=(\d+)-", self.range)
        return int(found[1]) if found else 0


HUB_ERRORS = {
    "401": (401, "", "Invalid credentials in Authorization header"),
    "gated": (
        403,
        "GatedRepo",
        "Access to model org/repo is restricted and you are not in the authorized list.",
    ),
    "404": (404, "EntryNotFound", "Entry not found"),
    "revision": (404, "RevisionNotFound", "Invalid rev id: main2"),
    "repo": (401, "RepoNotFound", "Invalid username or password."),
    "429": (
        429,
        "",
        "We had to rate limit you, you hit the quota of 1000 api requests per 5 minutes period.",
    ),
    "503": (503, "", "Service Unavailable"),
}
"""The Hub's refusals: status, X-Error-Code, message."""


class HubServer:
    """Starts both ports on loopback; `url` is what HF_ENDPOINT wants."""

    def __init__(self, *, rate: int | None = None) -> None:
        self.files: dict[tuple[str, str], dict[str, Content]] = {}
        self.blobs: dict[str, Content] = {}
        self.faults: list[Fault] = []
        self.log: list[Request] = []
        self.rate = rate
        self.sent = 0
        self.era = 0
        self.on_sent: Callable[[int], None] = lambda _: None
        self.etag_suffix = ""
        self.linked = True
        self.page = 1000
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self._servers = [_Server(self, "hub"), _Server(self, "bytes")]

    def __enter__(self) -> HubServer:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    @property
    def url(self) -> str:
        """Base address of the Hub."""
        return f"http://127.0.0.1:{self._servers[0].server_address[1]}"

    @property
    def bytes_url(self) -> str:
        """Base address of the host that holds the bytes; another origin because of its port."""
        return f"http://127.0.0.1:{self._servers[1].server_address[1]}"

    def add(self, repo: str, revision: str, path: str, data: bytes | Path) -> Content:
        """Publish a file."""
        if isinstance(data, Path):
            with data.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            content = Content(sha256=sha256, size=data.stat().st_size, path=data)
        else:
            content = Content(sha256=hashlib.sha256(data).hexdigest(), size=len(data), data=data)
        self.files.setdefault((repo, revision), {})[path] = content
        self.blobs[content.sha256] = content
        return content

    def misbehave(self, kind: str, **options: Any) -> None:
        """Queue a misbehaviour (see `_Handler`) for the next request that it applies to."""
        self.faults.append(Fault(kind=kind, **options))

    def requests(self, port: str) -> list[Request]:
        """What was asked of one port so far."""
        with self.lock:
            return [r for r in self.log if r.port == port and (port == "hub" or self.current(r.query))]

    def forget(self) -> None:
        """Empty the log; what clients of before still read is no longer counted."""
        with self.lock:
            self.log, self.sent, self.era = [], 0, self.era + 1

    def take(self, kinds: set[str], ranged: bool) -> Fault | None:
        """The next queued fault of these kinds, counted down."""
        with self.lock:
            for fault in self.faults:
                if fault.kind in kinds and fault.times > 0 and (ranged or not fault.only_ranges):
                    fault.times -= 1
                    return fault
        return None

    def count(self, size: int, query: str) -> None:
        """Note bytes of bodies that went out."""
        with self.lock:
            self.sent += size if self.current(query) else 0
            total = self.sent
        self.on_sent(total)

    def current(self, query: str) -> bool:
        """Whether a request to the byte host comes from a redirect given since `forget`."""
        return f"era={self.era}&" in query


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, hub: HubServer, port: str) -> None:
        self.hub, self.port_name = hub, port
        super().__init__(("127.0.0.1", 0), _HubHandler if port == "hub" else _BytesHandler)

    def handle_error(self, *_: object) -> None:
        """A client that went away is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    @property
    def hub(self) -> HubServer:
        return self.server.hub

    def log_message(self, *_: object) -> None:
        """Quiet; `HubServer.log` has it."""

    def note(self, status: int) -> None:
        parts = urlsplit(self.path)
        with self.hub.lock:
            self.hub.log.append(
                Request(
                    port=self.server.port_name,
                    path=unquote(parts.path),
                    query=parts.query,
                    range=self.headers.get("Range", ""),
                    authorization=self.headers.get("Authorization", ""),
                    status=status,
                )
            )

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.note(status)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, fault: Fault) -> None:
        status, code, message = HUB_ERRORS[fault.value]
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "X-Error-Message": message,
            **fault.headers,
        }
        if code:
            headers["X-Error-Code"] = code
        self.answer(status, json.dumps({"error": message}).encode(), headers)


class _HubHandler(_Handler):
    """`/api/models/REPO/tree/REVISION[/FOLDER]` and `/REPO/resolve/REVISION/PATH`."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if fault := self.hub.take({"refuse"}, True):
            self.refuse(fault)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)(?:/(.*))?", path):
            self.tree(*found.groups())
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)", path):
            self.info(*found.groups())
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(*found.groups())
        else:
            self.refuse(Fault(kind="refuse", value="404"))

    def tree(self, repo: str, revision: str, folder: str | None) -> None:
        files = self.hub.files.get((repo, revision))
        if files is None:
            return self.refuse(Fault(kind="refuse", value="revision"))
        entries = [
            {
                "type": "file",
                "oid": hashlib.sha1(content.sha256.encode()).hexdigest(),
                "size": content.size,
                "lfs": {"oid": content.sha256, "size": content.size, "pointerSize": 135},
                "path": path,
            }
            for path, content in sorted(files.items())
            if path.rpartition("/")[0] == (folder or "")
        ]
        found = re.search(r"cursor=(\d+)", urlsplit(self.path).query)
        first = int(found[1]) if found else 0
        page = entries[first : first + self.hub.page]
        headers = {"Content-Type": "application/json"}
        if first + self.hub.page < len(entries):
            plain = self.path.split("?")[0]
            headers["Link"] = f'<{self.hub.url}{plain}?cursor={first + self.hub.page}>; rel="next"'
        return self.answer(200, json.dumps(page).encode(), headers)

    def info(self, repo: str, revision: str) -> None:
        """What the Hub's own client asks first."""
        files = self.hub.files.get((repo, revision), {})
        siblings = [{"rfilename": path} for path in sorted(files)]
        body = {
            "id": repo,
            "modelId": repo,
            "sha": revision,
            "private": False,
            "siblings": siblings,
            "tags": [],
        }
        self.answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def resolve(self, repo: str, revision: str, path: str) -> None:
        content = self.hub.files.get((repo, revision), {}).get(path)
        if content is None:
            return self.refuse(Fault(kind="refuse", value="404"))
        headers = {
            "Location": f"{self.hub.bytes_url}/blob/{content.sha256}?era={self.hub.era}&Sig=very-secret",
            "X-Repo-Commit": revision,
            "Accept-Ranges": "bytes",
        }
        if self.hub.linked:
            headers |= {"X-Linked-Size": str(content.size), "X-Linked-Etag": f'"{content.sha256}"'}
        if fault := self.hub.take({"linked-etag", "linked-size", "commit"}, True):
            name = {"linked-etag": "X-Linked-Etag", "linked-size": "X-Linked-Size", "commit": "X-Repo-Commit"}
            headers[name[fault.kind]] = fault.value
        return self.answer(302, b"Found. Redirecting", headers)


class _BytesHandler(_Handler):
    """`/blob/SHA256` with ranges, and all that can go wrong with them."""

    KINDS = frozenset(
        {"ignore-range", "416", "wrong-offset", "cut", "stall", "trickle", "html", "refuse-bytes", "gzip"}
        | {"longer", "shorter", "flip", "other-total", "bare-206", "text"}
    )

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        content = self.hub.blobs.get(urlsplit(self.path).path.rpartition("/")[2])
        if content is None:
            return self.answer(404, b"no such blob", {})
        span = self.span(content)
        fault = self.hub.take(set(self.KINDS), self.headers.get("Range") is not None)
        special = getattr(self, "on_" + fault.kind.replace("-", "_"), self.send) if fault else self.send
        special(content, span, fault)
        return None

    def span(self, content: Content) -> tuple[int, int]:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not found:
            return 0, content.size
        return int(found[1]), min(int(found[2]) + 1, content.size) if found[2] else content.size

    def on_416(self, content: Content, _: tuple[int, int], __: Fault) -> None:
        self.answer(416, b"", {"Content-Range": f"bytes */{content.size}"})

    def on_html(self, *_: object) -> None:
        page = b"<!DOCTYPE html><html><body>Please log in to the network</body></html>"
        self.answer(200, page, {"Content-Type": "text/html"})

    def on_refuse_bytes(self, _: Content, __: tuple[int, int], fault: Fault) -> None:
        if fault.value == "expired":
            return self.answer(403, b"<Error><Code>AccessDenied</Code></Error>", {"Content-Type": "text/xml"})
        return self.refuse(fault)

    def on_gzip(self, content: Content, _: tuple[int, int], __: Fault) -> None:
        self.answer(200, gzip.compress(content.read(0, content.size)), {"Content-Encoding": "gzip"})

    def on_text(self, _: Content, __: tuple[int, int], fault: Fault) -> None:
        self.answer(200, fault.value.encode(), {"Content-Type": "text/plain"})

    def send(self, content: Content, span: tuple[int, int], fault: Fault | None) -> None:
        """The file or a range of it, as `fault` bends it."""
        kind = fault.kind if fault else ""
        start, end = span
        ranged = self.headers.get("Range") is not None and kind != "ignore-range"
        if kind == "ignore-range":
            start, end = 0, content.size
        if kind == "wrong-offset":
            start = max(0, start - 7)
        length = end - start + {"longer": 100, "shorter": -100}.get(kind, 0)
        self.note(206 if ranged else 200)
        self.send_response(206 if ranged else 200)
        self.send_header("Content-Length", str(length))
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("ETag", f'"{content.sha256[:32]}{self.hub.etag_suffix}"')
        if ranged and kind != "bare-206":
            total = content.size + (1 if kind == "other-total" else 0)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{total}")
        self.end_headers()
        if self.command != "HEAD":
            self.body(content, start, start + min(length, end - start), fault)

    def body(self, content: Content, start: int, end: int, fault: Fault | None) -> None:
        """Send bytes in pieces, at the server's rate, until done or the fault strikes."""
        kind, after = (fault.kind, fault.after) if fault else ("", 0)
        if fault is None and content.path is not None and self.hub.rate is None:
            with content.path.open("rb") as file:
                self.connection.sendfile(file, start, end - start)
            return self.hub.count(end - start, urlsplit(self.path).query)
        position = start
        while position < end and not self.hub.closing.is_set():
            size = min(PIECE, end - position)
            if kind in ("cut", "stall", "trickle"):
                size = min(size, start + after - position)
            if size <= 0:
                return self.strike(kind, content, position)
            piece = content.read(position, size)
            if kind == "flip" and position == start:
                piece = piece[:-1] + bytes([piece[-1] ^ 1])
            self.wfile.write(piece)
            self.hub.count(len(piece), urlsplit(self.path).query)
            position += size
            if self.hub.rate:
                time.sleep(size / self.hub.rate)
        if kind == "longer":
            self.strike("cut", content, position)
        return None

    def strike(self, kind: str, content: Content, position: int) -> None:
        """Cut the line, send nothing for ever, or a byte now and then."""
        while kind != "cut" and not self.hub.closing.wait(0.05):
            if kind == "trickle":
                self.wfile.write(content.read(position, 1))
                position += 1
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
