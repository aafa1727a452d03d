"""A real registry on loopback, for what is pushed and pulled; engines accept it without TLS."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import command
import web

CONFIG = """version: 0.1
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def registry_program(folder: Path) -> str:
    """Debian's docker-registry: the installed one, else its package unpacked into a folder."""
    found = shutil.which("docker-registry")
    if found:
        return found
    if not (command.have("apt-get") and command.have("dpkg-deb")):
        pytest.skip("docker-registry is not installed, and this host has no apt to get it with")
    command.run(["apt-get", "download", "docker-registry"], cwd=folder, timeout=120)
    command.run(["dpkg-deb", "-x", *folder.glob("docker-registry_*.deb"), folder / "registry"])
    return str(folder / "registry/usr/bin/docker-registry")


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """`host:port` of a registry that keeps its data in a folder and ends with the block."""
    port = free_port()
    config = folder / "config.yml"
    config.write_text(CONFIG.format(root=folder / "storage", port=port))
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([registry_program(folder), "serve", config], stdout=log, stderr=log)
    try:
        address = f"127.0.0.1:{port}"
        wait_for(address, server)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 30
    with web.session(local=True) as session:
        while server.poll() is None and time.monotonic() < end:
            try:
                if session.get(f"http://{address}/v2/").ok:
                    return
            except OSError:
                time.sleep(0.1)
    raise AssertionError(f"the registry does not answer (it ended with {server.poll()})")
