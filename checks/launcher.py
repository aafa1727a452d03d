"""Starts servers for the checks that vary their options: from host programs, or from an image."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import command
from checks.arrangement import Arrangement
from checks.client import Client
from errors import BadInput, CheckFailed

START_S: Final = 900.0
"""Seconds a server may take to load: the largest preset cold took two minutes (PEERS.md 4)."""

ALWAYS: Final = ("-t", "1", "--metrics", "--slots", "--jinja", "-lv", "4", "-fit", "off")
"""Arguments of every server that is started here. One thread: more of them spin on a busy machine."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A started server: its address, its key if it wants one, and its log so far."""

    url: str
    key: str | None
    log: Callable[[], str]

    def client(self, *, timeout: float = 300.0) -> Client:
        """A client that may do all it wants."""
        return Client(self.url, key=self.key, timeout=timeout)


class Launcher(Protocol):
    """Something that can start the engine."""

    @property
    def drafts(self) -> bool:
        """Whether there is a draft head."""

    def start(self, arrangement: Arrangement) -> Running:
        """Start a server and wait until it is healthy.

        Raises:
            CheckFailed: it ended, or was not healthy in time; `why` has the engine's own words.
        """

    def stop(self, running: Running) -> None:
        """End a server that `start` gave."""

    def program(self, name: str, arguments: Sequence[str], folder: Path) -> command.Done:
        """Run another program of the engine on the model; {folder} in an argument is `folder`, where it
        may read and write."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """The files of a model: its first shard, and its draft head if that is a file of its own.

    `embedded` says that the head is inside the model.
    """

    path: Path
    draft: Path | None = None
    embedded: bool = False

    @property
    def drafts(self) -> bool:
        """Whether it can speculate with a head of its own."""
        return self.embedded or self.draft is not None

    def check(self) -> None:
        """Raise BadInput unless the files are there."""
        for path in filter(None, (self.path, self.draft)):
            if not path.is_file():
                raise BadInput(f"there is no model file {path}")


class HostLauncher:
    """Starts programs of this machine.

    Args:
        programs: folder with llama-server and, for the perplexity check, llama-perplexity.
        model: what to load.
        extra: arguments for every server, as -ngl 99.
    """

    def __init__(self, programs: Path, model: Model, extra: Sequence[str] = ()) -> None:
        model.check()
        if not (programs / "llama-server").is_file():
            raise BadInput(f"there is no llama-server in {programs}")
        self._programs, self._model, self._extra = programs, model, tuple(extra)
        self._started: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}

    @property
    def drafts(self) -> bool:
        """Whether there is a draft head."""
        return self._model.drafts

    def start(self, arrangement: Arrangement) -> Running:
        """Start llama-server on a free port of loopback."""
        port, key = free_port(), secrets.token_hex(8) if arrangement.key else None
        handle, name = tempfile.mkstemp(prefix="haloforge-check-", suffix=".log")
        argv = [
            str(self._programs / "llama-server"), "--host", "127.0.0.1", "--port", str(port), *ALWAYS,
            *model_arguments(self._model, arrangement, lambda path: str(path)), *arrangement.arguments(),
            *self._extra, *(["--api-key", key] if key else []),
        ]  # fmt: skip
        with os.fdopen(handle, "wb") as log:
            process = subprocess.Popen(
                argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._environment()
            )
        running = Running(url=f"http://127.0.0.1:{port}", key=key, log=lambda: _text(Path(name)))
        self._started[running.url] = process, Path(name)
        try:
            await_health(running, lambda: process.poll() is None)
        except BaseException:
            self.stop(running)
            raise
        return running

    def stop(self, running: Running) -> None:
        """End it gently, and after ten seconds for good."""
        process, log = self._started.pop(running.url)
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.unlink()

    def program(self, name: str, arguments: Sequence[str], folder: Path) -> command.Done:
        """Run another program that lies beside llama-server."""
        placed = [word.replace("{folder}", str(folder)) for word in arguments]
        argv = [str(self._programs / name), "-m", str(self._model.path), "-t", "1", *self._extra, *placed]
        return command.run(argv, env=self._environment(), timeout=3600)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "LD_LIBRARY_PATH": str(self._programs)}


class ImageLauncher:
    """Starts containers of an image, as a deployment does: read-only, no capabilities, loopback only.

    Args:
        image: reference or id.
        model: what to load; its folder is mounted read-only.
        extra: arguments for every server.
        options: further arguments of docker run, as --device.
    """

    def __init__(
        self, image: str, model: Model, extra: Sequence[str] = (), options: Sequence[str] = ()
    ) -> None:
        model.check()
        self._image, self._model = image, model
        self._extra, self._options = tuple(extra), tuple(options)
        self._started: dict[str, str] = {}

    @property
    def drafts(self) -> bool:
        """Whether there is a draft head."""
        return self._model.drafts

    def start(self, arrangement: Arrangement) -> Running:
        """Start a container and publish its port on loopback."""
        key = secrets.token_hex(8) if arrangement.key else None
        arguments = [
            "--host", "0.0.0.0", "--port", "8080", *ALWAYS,  # noqa: S104 - inside the container only
            *model_arguments(self._model, arrangement, _inside), *arrangement.arguments(), *self._extra,
            *(["--api-key", key] if key else []),
        ]  # fmt: skip
        argv = ["docker", "run", "-d", "-p", "127.0.0.1::8080", *self._run_options()]
        container = command.run([*argv, self._image, *arguments], timeout=120).out.strip()
        try:
            port = command.run(["docker", "port", container, "8080/tcp"]).out.split()[0].rpartition(":")[2]
            running = Running(url=f"http://127.0.0.1:{port}", key=key, log=lambda: _container_log(container))
            await_health(running, lambda: _container_runs(container))
        except BaseException:
            _remove(container)
            raise
        self._started[running.url] = container
        return running

    def stop(self, running: Running) -> None:
        """Remove the container."""
        _remove(self._started.pop(running.url))

    def program(self, name: str, arguments: Sequence[str], folder: Path) -> command.Done:
        """Run another program of the image."""
        placed = [word.replace("{folder}", "/work") for word in arguments]
        argv = ["docker", "run", "--rm", *self._run_options(), "-v", f"{folder}:/work"]
        argv += ["--entrypoint", f"/app/{name}", self._image, "-m", _inside(self._model.path), "-t", "1"]
        return command.run([*argv, *self._extra, *placed], timeout=3600)

    def _run_options(self) -> list[str]:
        folders = {path.absolute().parent for path in (self._model.path, self._model.draft) if path}
        mounts = [word for folder in sorted(folders) for word in ("-v", f"{folder}:/models{folder}:ro")]
        return [
            "--label", "haloforge.check=1", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL",  # noqa: S108
            "--security-opt", "no-new-privileges", *mounts, *self._options,
        ]  # fmt: skip


def model_arguments(model: Model, arrangement: Arrangement, where: Callable[[Path], str]) -> list[str]:
    """-m, and -md where the draft head is asked for and a file of its own."""
    words = ["-m", where(model.path)]
    if arrangement.drafting and model.draft:
        words += ["-md", where(model.draft)]
    return words


def await_health(running: Running, alive: Callable[[], bool], *, timeout: float = START_S) -> None:
    """Wait until a started server says that it is healthy.

    Raises:
        CheckFailed: it ended or was too slow; `why` has its last error lines.
    """
    client, end, pause = running.client(timeout=5), time.monotonic() + timeout, 0.02
    while not client.healthy():
        ended = not alive()
        if ended or time.monotonic() > end:
            what = "ended while it started" if ended else f"was not healthy within {timeout:.0f} s"
            raise CheckFailed(f"the server {what}", why=last_errors(running.log()))
        time.sleep(pause)
        pause = min(pause * 1.3, 0.5)


def last_errors(log: str) -> str:
    """The engine's last error lines, else its last lines."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if " E " in line or "GGML_ASSERT" in line or "error:" in line]
    return "\n        ".join((errors or lines)[-4:])


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


@contextmanager
def work_folder(files: Mapping[str, str]) -> Iterator[Path]:
    """A folder with text files in which any user may write, for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="haloforge-check-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
            (folder / file).chmod(0o644)
        yield folder


def _inside(path: Path) -> str:
    return f"/models{path.absolute()}"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _container_log(container: str) -> str:
    done = command.run(["docker", "logs", container], check=False)
    return done.out + done.err


def _container_runs(container: str) -> bool:
    done = command.run(["docker", "inspect", "-f", "{{.State.Running}}", container], check=False)
    return done.out.strip() == "true"


def _remove(container: str) -> None:
    command.run(["docker", "rm", "-f", "-v", container], timeout=60)
