"""What is asked of the container engine about our containers: state, log, probe, start, stop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import docker
import requests
from docker.errors import APIError, DockerException, NotFound
from docker.models.containers import Container

import command
from command import CommandFailed
from errors import CheckFailed, HostLacks
from images import daemon

STOP_SECONDS: Final = 180
"""Grace for a server that frees tens of GiB of GPU memory; the compose file says the same."""


@dataclass(frozen=True, kw_only=True)
class State:
    """A container now. `health` is Docker's own word (starting, healthy, unhealthy, or empty)."""

    id: str
    status: str
    running: bool
    restarts: int
    exit_code: int
    oom_killed: bool
    health: str
    probe: tuple[int, str]
    started: str
    pid: int
    image: str

    def ended_since(self, restarts: int) -> bool:
        """Whether the engine ended since it had been restarted that often, even if it runs again."""
        return not self.running or self.restarts > restarts


@cache
def client() -> docker.DockerClient:
    """A connection to the daemon.

    Raises:
        HostLacks: it does not answer, or may not be used.
    """
    try:
        made = _connected()
        made.ping()
    except DockerException as error:
        daemon.raise_if_unreachable(str(error))
        raise HostLacks(
            "the Docker daemon does not answer", why=str(error), hint="./inv doctor --install"
        ) from error
    return made


def _connected() -> docker.DockerClient:
    """The daemon that the `docker` command talks to: `DOCKER_HOST`, else the chosen context's."""
    if os.environ.get("DOCKER_HOST"):
        return docker.from_env(timeout=60)
    shown = daemon.docker("context", "inspect", "--format", "{{.Endpoints.docker.Host}}", check=False)
    return docker.DockerClient(base_url=shown.out.strip() or None, timeout=60)


@contextmanager
def _speaking() -> Iterator[None]:
    """Turn a daemon that went away meanwhile into the error a user can act on."""
    try:
        yield
    except requests.RequestException as error:
        client.cache_clear()
        raise HostLacks("the Docker daemon stopped answering", why=str(error), hint="./inv doctor") from error
    except APIError as error:
        why = str(error.explanation or error)
        raise CheckFailed("the Docker daemon refused", why=why, hint="./inv status") from error


def find(name: str) -> Container | None:
    """A container by name, running or not."""
    with _speaking():
        try:
            return client().containers.get(name)
        except NotFound:
            return None


def state(name: str) -> State | None:
    """The state of a container, or None if there is none of that name."""
    found = find(name)
    return None if found is None else parse(found.attrs)


def parse(attrs: dict[str, Any]) -> State:
    """Read what `docker inspect` says of a container."""
    now = attrs["State"]
    health = now.get("Health") or {}
    last = (health.get("Log") or [{}])[-1]
    return State(
        id=attrs["Id"],
        status=now["Status"],
        running=bool(now["Running"]) and now["Status"] == "running",
        restarts=int(attrs.get("RestartCount", 0)),
        exit_code=int(now["ExitCode"]),
        oom_killed=bool(now["OOMKilled"]),
        health=str(health.get("Status", "")),
        probe=(int(last.get("ExitCode", 0)), str(last.get("Output", "")).strip()),
        started=str(now.get("StartedAt", "")),
        pid=int(now.get("Pid", 0)),
        image=str(attrs["Image"]),
    )


def log(name: str, *, tail: int | None = None) -> list[str]:
    """The lines of a container's log, both outputs; empty where there is no container."""
    found = find(name)
    if found is None:
        return []
    with _speaking():
        raw = found.logs(stdout=True, stderr=True, tail="all" if tail is None else tail)
    return _text(raw).splitlines()


def _text(output: Any) -> str:
    return bytes(output).decode(errors="replace") if output else ""


def follow(name: str, *, tail: int) -> Iterator[str]:
    """The last lines of a log, then each new one as it comes."""
    found = find(name)
    if found is None:
        return
    with _speaking():
        rest = b""
        for piece in found.logs(stdout=True, stderr=True, tail=tail, stream=True, follow=True):
            *lines, rest = (rest + piece).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
        if rest:
            yield rest.decode(errors="replace")


def probe(name: str) -> tuple[int, str]:
    """Run the image's own health probe in the container: its exit code and what it printed."""
    found = find(name)
    if found is None:
        return 1, "there is no container"
    with _speaking():
        try:
            code, output = found.exec_run(["/app/health"])
        except APIError as error:
            return -1, str(error.explanation)
    return -1 if code is None else code, _text(output).strip()


def publishing(port: int) -> list[str]:
    """The names of running containers that publish a host port."""
    with _speaking():
        running: list[Container] = client().containers.list()
    return [str(found.name) for found in running if port in published(found.attrs)]


def published(attrs: dict[str, Any]) -> set[int]:
    """The host ports that a container publishes, from what `docker inspect` says of it."""
    bound = (attrs.get("NetworkSettings") or {}).get("Ports") or {}
    return {int(each["HostPort"]) for pairs in bound.values() for each in pairs or () if each.get("HostPort")}


def up(file: Path, project: str) -> None:
    """Create what a compose file says and start it; an existing container is started again.

    Raises:
        HostLacks: the port is taken, a device or a mount is missing.
    """
    _compose(file, project, "up", "--detach", "--no-build", "--no-color", "--quiet-pull")


def create(file: Path, project: str) -> None:
    """Create the containers and the network of a compose file without starting them."""
    _compose(file, project, "create", "--no-build")


def down(file: Path, project: str) -> None:
    """Remove the containers and the network of a compose file."""
    _compose(file, project, "down", "--timeout", str(STOP_SECONDS))


def stop(name: str) -> None:
    """Stop a container and keep it."""
    found = find(name)
    if found is not None:
        with _speaking():
            found.stop(timeout=STOP_SECONDS)


def _compose(file: Path, project: str, *words: str) -> None:
    argv = ["docker", "compose", "--file", str(file), "--project-name", project, "--env-file", "/dev/null"]
    argv += words
    done = command.run(argv, check=False, timeout=STOP_SECONDS + 120)
    if done.code:
        daemon.raise_if_unreachable(done.err)
        raise _explained(done)


def _explained(done: command.Done) -> HostLacks | CommandFailed:
    lines = [line.strip() for line in done.err.splitlines() if line.strip()]
    last = lines[-1] if lines else f"it ended with {done.code}"
    for words, what, hint in _KNOWN:
        if words in done.err:
            return HostLacks(what, why=last, hint=hint)
    return CommandFailed(done)


_KNOWN: Final = (
    ("port is already allocated", "the port is taken", "./inv status, or choose another with --set port=N"),
    ("address already in use", "the port is taken", "./inv status, or choose another with --set port=N"),
    ("error gathering device information", "a device node is missing", "./inv doctor"),
    (
        "error setting rlimit",
        "the Docker daemon may not raise a limit",
        "systemctl edit docker: LimitMEMLOCK=infinity",
    ),
    ("No such image", "the image is gone", "./inv build"),
    ("no space left on device", "the disk is full", "docker system df, then docker image prune"),
    ("'compose' is not a docker command", "docker has no compose plugin", "./inv doctor --install"),
    ("unknown shorthand flag", "docker has no compose plugin", "./inv doctor --install"),
)
