"""Who has a port: parsed from recorded tables, and found for real."""

# ruff: noqa: E501 (recorded lines keep their width)

from __future__ import annotations

import http.server
import os
import socket
import threading

import pytest

from compose import container, ports

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 25961 1 0000000000000000 100 0 0 10 0
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20001 1 0000000000000000 100 0 0 10 0
   2: 0100007F:1F90 0100007F:D3A4 01 00000000:00000000 00:00000000 00000000  1000        0 25999 1 0000000000000000 20 0 0 10 -1
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000001000000:1F91 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 30001 1 0000000000000000 100 0 0 10 0
"""


def test_tables_are_parsed() -> None:
    assert [(s.address, s.port, s.inode) for s in ports.listening(TCP)] == [
        ("127.0.0.1", 8080, 25961),
        ("0.0.0.0", 22, 20001),
    ]
    assert [(s.address, s.port) for s in ports.listening(TCP6)] == [("::1", 8081)]


@pytest.mark.parametrize(
    ("listens", "wants", "blocked"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("127.0.0.1", "127.0.0.2", False),
    ],
)
def test_addresses_block_each_other(listens: str, wants: str, blocked: bool) -> None:
    with socket.create_server((listens, 0)) as server:
        port = server.getsockname()[1]
        assert (ports.holder(port, wants) is not None) == blocked


def test_the_holder_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert f"(pid {os.getpid()})" in str(ports.holder(port, "127.0.0.1"))
    assert ports.holder(port, "127.0.0.1") is None


class _Health(http.server.BaseHTTPRequestHandler):
    body = b'{"status":"ok"}'

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *words: object) -> None:
        pass


class _Page(_Health):
    body = b"<html>"


@pytest.mark.parametrize(("handler", "like"), [(_Health, True), (_Page, False)])
def test_a_server_that_answers_health_is_recognised(handler: type[_Health], like: bool) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert ports.answers_health(f"http://127.0.0.1:{server.server_port}") is like
        server.shutdown()
    assert not ports.answers_health(f"http://127.0.0.1:{server.server_port}")


def test_published_ports_are_read_from_inspect() -> None:
    attrs = {
        "NetworkSettings": {
            "Ports": {"8080/tcp": [{"HostIp": "127.0.0.1", "HostPort": "9000"}], "1/tcp": None}
        }
    }
    assert container.published(attrs) == {9000}
    assert container.published({"NetworkSettings": {"Ports": None}}) == set()
