"""Deployments of tiny models: presets written on the spot, a home of their own, and what is asked of them."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container

import paths
from presets import schema

ROOT = paths.ROOT
BASE = """\
purpose: a tiny model for a test
flavour: cpu
model: {folder}/trunk.gguf
ctx: 4096
batch: 256
ubatch: 64
gpu_layers: 0
threads: 1
load_mode: mmap
lazy_mode: on
cache_ram: 16
ctx_checkpoints: 4
answer: null
guard_gib: 0.1
"""
MTP = "head: {folder}/head.gguf\nspec_type: draft-mtp\ndraft_n_max: 3\n"


@dataclass(frozen=True)
class Home:
    """A HALOFORGE_HOME for deployments, and the folder with the tiny models."""

    path: Path
    models: Path
    port: int

    def preset(self, name: str = "tiny", *, mtp: bool = False, **settings: object) -> Path:
        """Write a preset for the tiny trunk; settings replace those of BASE."""
        text = (BASE + (MTP if mtp else "")).format(folder=self.models)
        values = dict(line.split(": ", 1) for line in text.splitlines())
        values |= {"port": str(self.port)} | {key: json.dumps(value) for key, value in settings.items()}
        path = self.path / "presets" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{key}: {value}\n" for key, value in values.items()), encoding="utf-8")
        return path

    def load(self, name: str = "tiny", *, mtp: bool = False, **settings: object) -> schema.Preset:
        """The same, loaded."""
        return schema.load(self.preset(name, mtp=mtp, **settings))

    def inv(self, *words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a task as a user does."""
        return subprocess.run(
            [sys.executable, "-m", "invoke", "--search-root", ROOT, *words],
            env={**os.environ, "HALOFORGE_HOME": str(self.path)}, capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip

    def deploy_killed_at(self, preset: Path, step: str) -> bool:
        """Run `deploy` and SIGKILL it when it prints a line of that step; whether it got so far."""
        process = subprocess.Popen(
            [sys.executable, "-m", "invoke", "--search-root", ROOT, "deploy", "--preset", str(preset)],
            env={**os.environ, "HALOFORGE_HOME": str(self.path)}, stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        with process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.strip().startswith(step):
                    process.send_signal(signal.SIGKILL)
                    return True
        return False

    def wait_for_switch(self, seconds: float = 120) -> None:
        """Wait until nobody holds the lock: a switch outlives the `deploy` that started it."""
        end = time.monotonic() + seconds
        with (self.path / "deployments" / ".lock").open("a") as file:
            while time.monotonic() < end:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(0.1)
                else:
                    return
        raise AssertionError("the switch did not end")

    def containers(self, *, running: bool = True) -> list[Container]:
        """The containers of this home."""
        found: list[Container] = docker.from_env().containers.list(
            all=not running, filters={"label": f"io.haloforge.home={self.path}"}
        )
        return found


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def home(path: Path, models: Path) -> Iterator[Home]:
    """A home that shares fetched sources and patched trees with the real one; its containers are removed."""
    real = paths.home()
    for shared in ("sources", "trees", "images"):
        (real / shared).mkdir(parents=True, exist_ok=True)
        (path / shared).symlink_to(real / shared)
    made = Home(path=path, models=models, port=free_port())
    before = os.environ.get("HALOFORGE_HOME")
    os.environ["HALOFORGE_HOME"] = str(path)
    try:
        yield made
    finally:
        os.environ.pop("HALOFORGE_HOME") if before is None else os.environ.update(HALOFORGE_HOME=before)
        for found in made.containers(running=False):
            found.remove(force=True)
        for network in docker.from_env().networks.list(names=["haloforge-"]):
            if not network.containers and network.attrs["Labels"].get(
                "com.docker.compose.project", ""
            ).startswith(f"haloforge-{_home_id(path)}"):
                network.remove()


def _home_id(path: Path) -> str:
    from compose.render import home_id

    return home_id(path)


def pid(container: Container) -> int:
    """The host's number of process 1 of a container."""
    container.reload()
    return int(container.attrs["State"]["Pid"])


def wait_until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.1)


def argv_of(container: Container) -> list[str]:
    """The arguments of process 1 of a running container, as the kernel has them."""
    raw = Path(f"/proc/{pid(container)}/cmdline").read_bytes()
    return [word.decode() for word in raw.split(b"\0")[:-1]]


def started(container: Container) -> Any:
    """When a container was started."""
    container.reload()
    return container.attrs["State"]["StartedAt"]
