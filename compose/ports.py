"""Who listens on a TCP port: the container that publishes it, or the process and its program."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import requests

import web

_LISTEN: Final = "0A"


@dataclass(frozen=True, kw_only=True)
class Socket:
    """A listening socket as /proc/net/tcp shows it: address, port, inode."""

    address: str
    port: int
    inode: int


def listening(table: str) -> Iterator[Socket]:
    """Parse /proc/net/tcp or tcp6: the sockets in state LISTEN."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN:
            continue
        address, _, port = fields[1].rpartition(":")
        yield Socket(address=_address(address), port=int(port, 16), inode=int(fields[9]))


def holder(port: int, bind: str, proc: Path = Path("/proc")) -> str | None:
    """Who keeps `bind:port` from being listened on: "PROGRAM (pid N)" or "a process of another user".

    None where it is free. A socket on all addresses blocks each of them, and the other way round.
    """
    for table in ("tcp", "tcp6"):
        try:
            text = (proc / "net" / table).read_text()
        except OSError:
            continue
        for found in listening(text):
            if found.port == port and _overlap(found.address, bind):
                return _owner(found.inode, proc) or "a process of another user"
    return None


def answers_health(url: str) -> bool:
    """Whether something at this URL answers /health as a llama-server does, ready or loading."""
    try:
        answer = web.session(local=True).get(f"{url}/health", timeout=2)
        body = answer.json()
    except (requests.RequestException, ValueError):
        return False
    return isinstance(body, dict) and (body.get("status") == "ok" or "error" in body)


def _owner(inode: int, proc: Path) -> str | None:
    wanted = f"socket:[{inode}]"
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        try:
            if any(str(link.readlink()) == wanted for link in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                return f"{Path(words[0]).name or (process / 'comm').read_text().strip()} (pid {process.name})"
        except OSError:
            continue
    return None


def _overlap(one: str, other: str) -> bool:
    everywhere = {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound
    return one == other or bool({one, other} & everywhere)


def _address(text: str) -> str:
    """An address of /proc/net/tcp: 32-bit words in host byte order, as hexadecimal."""
    raw = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
