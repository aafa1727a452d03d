"""Servers to measure: one that runs already, or one started for a point and ended after it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import requests

import command
import web
from errors import BadInput, CheckFailed, HostLacks
from presets.gguf import shard_paths
from presets.schema import Preset

START_S: Final = 900.0
"""Seconds to wait for healthy: a cold 104 GiB model took llama.cpp 118 s, on a slow disk far longer."""
TOOL_S: Final = 7200.0
"""Seconds for one llama-bench run."""
STOP_S: Final = 180.0
"""Seconds an engine may take to hand its memory back before it is killed (SEED.md A5)."""


@dataclass(frozen=True, kw_only=True)
class Files:
    """The model's first shard and its draft head, as this host sees them."""

    model: Path
    draft: Path | None = None

    @property
    def every(self) -> list[Path]:
        """All shards, and the head."""
        return [*shard_paths(self.model), *([self.draft] if self.draft else [])]

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.stat().st_size for file in self.every)


class Server(Protocol):
    """A llama-server that answers at `url`."""

    @property
    def url(self) -> str: ...
    @property
    def key(self) -> str | None: ...
    def log(self) -> str:
        """All it has printed so far; empty where that cannot be seen."""
        ...

    def ended(self) -> str | None:
        """Why it no longer runs, or None while it does."""
        ...

    def pid(self) -> int | None:
        """Its process on this host, where that can be known."""
        ...

    def stop(self) -> None:
        """End it and wait until it is gone."""
        ...

    def kill(self) -> None:
        """End it at once: the guard's way."""
        ...

    def remove(self) -> None:
        """Clear away what is left of it."""
        ...


class Launcher(Protocol):
    """Starts servers of one engine, and its other programs."""

    def start(self, preset: Preset, files: Files) -> Server:
        """Start llama-server as the preset says; it loads while this returns."""
        ...

    def tool(self, program: str, arguments: Sequence[str], preset: Preset, files: Files) -> str:
        """Run another program of the engine (llama-bench) on the model and return what it printed."""
        ...


class ServerDied(CheckFailed):
    """The server ended while it was needed; `why` is its own last word."""


@dataclass(kw_only=True)
class Remote:
    """A server somebody else runs."""

    url: str
    key: str | None = None

    def log(self) -> str:
        return ""

    def ended(self) -> str | None:
        return None

    def pid(self) -> int | None:
        return None

    def stop(self) -> None:
        """Leave it running: it is not ours."""

    def kill(self) -> None:
        """Leave it running: it is not ours."""

    def remove(self) -> None:
        """Leave it running: it is not ours."""


@dataclass(kw_only=True)
class Process:
    """A server that runs as a process of this host and logs into a file."""

    url: str
    running: subprocess.Popen[bytes]
    log_file: Path
    key: str | None = None

    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def ended(self) -> str | None:
        code = self.running.poll()
        return None if code is None else f"{_how(code)}: {last_word(self.log())}"

    def pid(self) -> int | None:
        return self.running.pid

    def stop(self) -> None:
        if self.running.poll() is not None:
            return
        self.running.send_signal(signal.SIGINT)
        try:
            self.running.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self.running.kill()
        self.running.wait()

    def remove(self) -> None:
        self.log_file.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class Program:
    """Launches llama-server from a folder of this host's own programs, or what stands in for it.

    Args:
        command: what starts a server, before its arguments.
        logs: folder for the logs.
        tools: folder with llama-bench; None when there is none.
        build: upstream build whose options it takes.
        environment: added to this process's.
    """

    command: tuple[str, ...]
    logs: Path
    tools: Path | None = None
    build: int = 11434
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, preset: Preset, files: Files) -> Server:
        port = free_port()
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{time.time_ns()}.log"
        draft = str(files.draft) if files.draft and preset.drafts else None
        words = [*self.command, *preset.arguments(self.build, model=str(files.model), draft=draft)]
        words += ["--host", "127.0.0.1", "--port", str(port)]
        with log.open("wb") as out:
            try:
                process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                    env={**os.environ, **preset.variables(), **self.environment},
                )  # fmt: skip
            except OSError as error:
                raise HostLacks(f"cannot start {words[0]}", why=error.strerror or str(error)) from error
        return Process(url=f"http://127.0.0.1:{port}", running=process, log_file=log)

    def tool(self, program: str, arguments: Sequence[str], preset: Preset, files: Files) -> str:
        if self.tools is None:
            raise HostLacks(f"no {program} beside {self.command[0]}")
        words = [str(self.tools / program), "--model", str(files.model), *arguments]
        environment = {**preset.variables(), **self.environment}
        return command.run(words, env=environment, timeout=TOOL_S).out


def free_port() -> int:
    """A port nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _how(code: int) -> str:
    if code >= 0:
        return f"it ended with {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"


_ERROR_LINE = re.compile(
    r"^(?:\d+\.\d\d\.\d{3}\.\d{3} )?(?:E |error[: ]|.*\bGGML_ASSERT|.*exiting due to)", re.IGNORECASE
)


def last_word(log: str) -> str:
    """The engine's own last error line, else its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR_LINE.match(line)]
    return (errors or lines or ["it printed nothing"])[-1][:300]


def wait_healthy(server: Server, *, timeout_s: float = START_S, every_s: float = 0.02) -> float:
    """Seconds until `/health` says ok.

    Raises:
        ServerDied: it ended before, or did not get there in time.
    """
    begin = time.monotonic()
    client = web.session(local=True)
    while time.monotonic() - begin < timeout_s:
        reason = server.ended()
        if reason is not None:
            raise ServerDied("the server did not start", why=reason)
        try:
            if client.get(f"{server.url}/health", timeout=5).status_code == 200:
                return time.monotonic() - begin
        except requests.RequestException:
            pass
        time.sleep(every_s)
    raise ServerDied("the server did not become healthy", why=f"not within {timeout_s:g} s")


def ask(server: Server, path: str, body: Any = None) -> Any:
    """One JSON question to a server; with a body it is a POST.

    Raises:
        ServerDied: nothing answers, or not with JSON, or with an error.
        BadInput: the URL is none, or the server wants a key.
    """
    headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
    client = web.session(local=not isinstance(server, Remote))
    try:
        if body is None:
            answer = client.get(server.url + path, headers=headers)
        else:
            answer = client.post(server.url + path, json=body, headers=headers, timeout=600)
        value = answer.json()
    except (requests.exceptions.InvalidSchema, requests.exceptions.InvalidURL) as error:
        raise BadInput(f"{server.url!r} is not a server's URL", hint="--url http://127.0.0.1:8080") from error
    except (requests.RequestException, ValueError) as error:
        raise ServerDied(
            f"{server.url}{path} did not answer", why=server.ended() or _silence(error)
        ) from error
    if answer.status_code == 401:
        raise BadInput(f"{server.url} wants an API key", why="HTTP 401", hint="give --key-file FILE")
    if answer.status_code != 200:
        raise ServerDied(f"{server.url}{path} answered {answer.status_code}", why=str(value)[:300])
    return value


def _silence(error: Exception) -> str:
    """Why there is no answer, without the stack of library names."""
    if isinstance(error, requests.Timeout):
        return "it took too long"
    if isinstance(error, requests.ConnectionError):
        return "nothing listens there, or it hung up"
    return f"what came back is not JSON: {error}"


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a running server says of itself."""

    model: str
    path: str
    build: str
    slots: int
    slot_context: int


def served(server: Server) -> Served:
    """Read `/props`; `slot_context` is in tokens."""
    props = ask(server, "/props")
    try:
        return Served(
            model=str(props["model_alias"]),
            path=str(props["model_path"]),
            build=str(props["build_info"]),
            slots=int(props["total_slots"]),
            slot_context=int(props["default_generation_settings"]["n_ctx"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{server.url} is no llama-server", why=f"/props has no {error}", hint="give the engine's own URL"
        ) from error


def refuse_other_model(found: Served, wanted: Sequence[str], url: str) -> None:
    """Stop when the server behind a URL serves another model than the one named.

    Args:
        wanted: names that are right: the alias, or the file name of the first shard.
    """
    names = {found.model.lower(), Path(found.path).name.lower(), Path(found.path).stem.lower()}
    if not names & {name.lower() for name in wanted}:
        raise BadInput(
            f"the wrong model is behind {url}",
            why=f"it serves {found.model!r} from {found.path}, wanted {' or '.join(wanted)}",
            hint="name the preset it runs with --preset, or leave --preset out to measure what is there",
        )
