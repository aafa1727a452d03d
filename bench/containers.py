"""Servers in containers of an image, run as a deployment runs them: read-only, unprivileged, on loopback."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import command
from bench.servers import STOP_S, TOOL_S, Files, Server, last_word
from compose import host
from compose.render import devices_for, inside
from errors import CheckFailed
from presets.schema import Preset

LABEL: Final = "haloforge.bench"
"""Carries the number of the process that started the container."""
HOST_LABEL: Final = "haloforge.bench.host"
"""Carries the name of the host that number counts on: a bench inside a container has numbers of its own."""


@dataclass(frozen=True, kw_only=True)
class Container:
    """A started container that publishes llama-server on loopback."""

    name: str
    url: str
    key: str | None = None

    def log(self) -> str:
        done = command.run(["docker", "logs", self.name], check=False)
        return done.out + done.err

    def ended(self) -> str | None:
        state = self._state()
        if state is None:
            return "its container is gone"
        if state["Running"]:
            return None
        why = (
            "the kernel killed it for memory" if state["OOMKilled"] else f"it ended with {state['ExitCode']}"
        )
        return f"{why}: {last_word(self.log())}"

    def pid(self) -> int | None:
        state = self._state()
        return int(state["Pid"]) or None if state else None

    def stop(self) -> None:
        command.run(["docker", "stop", "-t", f"{STOP_S:.0f}", self.name], check=False, timeout=STOP_S + 60)

    def kill(self) -> None:
        command.run(["docker", "kill", self.name], check=False, timeout=60)

    def remove(self) -> None:
        command.run(["docker", "rm", "-f", "-v", self.name], check=False, timeout=60)

    def _state(self) -> dict[str, Any] | None:
        done = command.run(["docker", "inspect", "-f", "{{json .State}}", self.name], check=False)
        return dict(json.loads(done.out)) if done.code == 0 else None


@dataclass(frozen=True, kw_only=True)
class Image:
    """Launches servers from an image.

    Args:
        ref: reference or id of the image.
        flavour: decides which devices are passed in.
        build: upstream build whose options its engine takes.
    """

    ref: str
    flavour: str
    build: int

    def start(self, preset: Preset, files: Files) -> Server:
        """Start a container; those of a bench that was killed are removed first."""
        remove_orphans()
        draft = inside(files.draft.name) if files.draft and preset.drafts else None
        words = ["docker", "run", "-d", "-p", f"127.0.0.1::{preset.port}", *self._options(preset, files)]
        words += [self.ref, *preset.arguments(self.build, model=inside(files.model.name), draft=draft)]
        name = command.run(words, timeout=300).out.strip()[:12]
        published = command.run(["docker", "port", name, f"{preset.port}/tcp"], check=False).out.split()
        if not published:
            dead = Container(name=name, url="").ended()
            Container(name=name, url="").remove()
            raise CheckFailed("the server ended at once", why=dead or "its container published no port")
        return Container(name=name, url=f"http://127.0.0.1:{published[0].rpartition(':')[2]}")

    def tool(self, program: str, arguments: Sequence[str], preset: Preset, files: Files) -> str:
        """Run another program of the image to its end and return its standard output.

        It starts as the server does: on a GPU flavour the image first makes sure that there is a device,
        since llama-bench would name the GPU's backend and run on the CPU.
        """
        first, *rest = [*self._entry_point()[:-1], f"/app/{program}"]
        words = [
            "docker",
            "run",
            "--rm",
            *self._options(preset, files),
            "--entrypoint",
            first,
            self.ref,
            *rest,
        ]
        words += ["--model", inside(files.model.name), *arguments]
        return command.run(words, timeout=TOOL_S).out

    def _entry_point(self) -> list[str]:
        form = "{{json .Config.Entrypoint}}"
        found = json.loads(command.run(["docker", "inspect", "-f", form, self.ref]).out) or []
        return [str(word) for word in found]

    def _options(self, preset: Preset, files: Files) -> list[str]:
        facts = host.facts()
        nodes = devices_for(self.flavour, facts)
        words = [
            "--label", f"{LABEL}={os.getpid()}", "--label", f"{HOST_LABEL}={platform.node()}",
            "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL",  # noqa: S108
            "--security-opt", "no-new-privileges", "--user", f"{facts.uid}:{facts.gid}",
        ]  # fmt: skip
        for file in files.every:
            words += ["-v", f"{file.resolve()}:{inside(file.name)}:ro"]
        for node in nodes:
            words += ["--device", node.path]
        for group in sorted({node.gid for node in nodes}):
            words += ["--group-add", str(group)]
        if nodes:
            words += ["--shm-size", "1g"]
        for name, value in preset.variables().items():
            words += ["-e", f"{name}={value}"]
        return words


def remove_orphans() -> None:
    """Remove containers whose bench no longer runs."""
    form = f'{{{{.ID}}}} {{{{.Label "{LABEL}"}}}}'
    ours = f"label={HOST_LABEL}={platform.node()}"
    listed = command.run(["docker", "ps", "-a", "--filter", ours, "--format", form]).out
    for line in listed.splitlines():
        name, _, owner = line.partition(" ")
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            Container(name=name, url="").remove()
