"""What is asked of the container engine, through its command line: inspect, pull, import, copy out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import command
from command import CommandFailed, Done
from errors import HaloforgeError, HostLacks

_UNREACHABLE = ("cannot connect to the docker daemon", "is the docker daemon running")
_FORBIDDEN = "permission denied while trying to connect"


def docker(*words: str | Path, check: bool = True, timeout: float | None = 120) -> Done:
    """Run `docker` with these words.

    Raises:
        HostLacks: there is no docker, or its daemon does not answer or may not be used.
        CommandFailed: it failed for another reason and `check` is set.
    """
    done = command.run(["docker", *words], check=False, timeout=timeout)
    if done.code:
        raise_if_unreachable(done.err)
        if check:
            raise CommandFailed(done)
    return done


def raise_if_unreachable(text: str) -> None:
    """Turn docker's own words about its daemon into the error that a user can act on."""
    low = text.lower()
    if any(words in low for words in _UNREACHABLE):
        raise HostLacks("the Docker daemon does not answer", why=text.strip(), hint="./inv doctor --install")
    if _FORBIDDEN in low:
        raise HostLacks(
            "this user may not use the Docker daemon", why=text.strip(),
            hint="sudo usermod -aG docker $USER, then log in again",
        )  # fmt: skip


def context() -> str:
    """The current context; buildx has a builder of that name which is the engine itself.

    A builder in a container, where the user has made one the default, does not see local base images.
    """
    return docker("context", "inspect", "--format", "{{.Name}}").out.strip()


def inspect(ref: str) -> dict[str, Any] | None:
    """What the engine knows of an image (tag, digest or id), or None if it is not there."""
    done = docker("image", "inspect", ref, check=False)
    if done.code == 0:
        found: dict[str, Any] = json.loads(done.out)[0]
        return found
    if "no such image" in done.err.lower():
        return None
    raise CommandFailed(done)


def labelled(labels: Mapping[str, str]) -> list[str]:
    """The ids of the images that carry all these labels, newest first, each once."""
    filters = [word for name, value in labels.items() for word in ("--filter", _filter(name, value))]
    done = docker("image", "ls", "--no-trunc", "--format", "{{.ID}}", *filters)
    return list(dict.fromkeys(done.out.split()))


def _filter(name: str, value: str) -> str:
    return f"label={name}={value}" if value else f"label={name}"


def pull(ref: str, say_line: Any) -> str:
    """Pull an image; returns "" or, if that failed, the registry's or the daemon's reason in one line."""
    lines: list[str] = []

    def keep(line: str) -> None:
        lines.append(line)
        say_line(line)

    code = command.stream(["docker", "pull", "--quiet", ref], keep)
    if code == 0:
        return ""
    reason = lines[-1].strip() if lines else f"docker pull ended with {code}"
    raise_if_unreachable(reason)
    return reason.removeprefix("Error response from daemon: ")


def import_root(archive: Path, tag: str, changes: Sequence[str]) -> str:
    """Make an image of one layer from a tar file of a root folder; returns its id."""
    if archive.stat().st_size < 1 << 20:
        raise HaloforgeError(
            f"{archive} is too small to be a root folder", hint=f"rm {archive} and try again"
        )
    words = [word for change in changes for word in ("--change", change)]
    return docker("import", *words, archive, tag, timeout=600).out.strip()


def copy_out(image: str, path: str, target: Path) -> None:
    """Copy one file out of an image without starting it."""
    container = docker("create", image).out.strip()
    try:
        docker("cp", "--follow-link", f"{container}:{path}", target)
    finally:
        docker("rm", "--force", container)
