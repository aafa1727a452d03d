"""A failed build, told in one error: what the log shows, and what to type next."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from errors import BuildFailed, HaloforgeError, HostLacks, NetworkFailed

_NUMBERED: Final = re.compile(r"^#\d+ (?:[\d.]+ )?")


def explain(text: str, *, log: Path, jobs: int) -> HaloforgeError:
    """The error for a build whose whole output is `text`.

    Args:
        jobs: how many compile jobs ran, for the advice when the compiler was killed.
    """
    lines = [_NUMBERED.sub("", line) for line in text.splitlines()]
    for pattern, make in _KNOWN:
        hit = next((line.strip() for line in reversed(lines) if re.search(pattern, line)), None)
        if hit is not None:
            return make(hit, lines, log, jobs)
    return BuildFailed("the image did not build", why=_first_error(lines), hint=f"the whole log: {log}")


def _disk(hit: str, lines: list[str], log: Path, jobs: int) -> HaloforgeError:
    return HostLacks("the disk is full", why=hit, hint="docker system df, then docker builder prune")


def _killed(hit: str, lines: list[str], log: Path, jobs: int) -> HaloforgeError:
    fewer = max(1, jobs // 2)
    hint = f"./inv build --jobs {fewer}" if jobs > 1 else "free some memory, or add swap, and try again"
    return BuildFailed(
        f"the compiler was killed; with {jobs} jobs the memory does not suffice", why=hit, hint=hint
    )


def _moved(hit: str, lines: list[str], log: Path, jobs: int) -> HaloforgeError:
    moved = [line.removeprefix("haloforge: ").strip() for line in lines if "haloforge: pinned" in line]
    return BuildFailed(
        "the package archive has moved on from the pinned versions", why="; ".join(dict.fromkeys(moved)),
        hint="check the new versions and write them to images/bases.yaml",
    )  # fmt: skip


def _network(hit: str, lines: list[str], log: Path, jobs: int) -> HaloforgeError:
    return NetworkFailed(
        "packages could not be downloaded", why=hit, hint="the same command again; what is done is kept"
    )


def _daemon(hit: str, lines: list[str], log: Path, jobs: int) -> HaloforgeError:
    return HostLacks("the Docker daemon does not answer", why=hit, hint="./inv doctor --install")


def _plugin(hit: str, lines: list[str], log: Path, jobs: int) -> HaloforgeError:
    return HostLacks(
        "docker has no buildx", why=hit, hint="apt-get install docker-buildx   (or ./inv doctor --install)"
    )


def _own(hit: str, lines: list[str], log: Path, jobs: int) -> HaloforgeError:
    start = next(i for i, line in enumerate(lines) if "haloforge: " in line and hit in line)
    shown = [line.strip() for line in lines[start : start + 6] if line.strip()]
    return BuildFailed(
        shown[0].removeprefix("haloforge: "), why="; ".join(shown[1:]), hint=f"the whole log: {log}"
    )


def _first_error(lines: list[str]) -> str:
    """The first line that a compiler, CMake or apt calls an error, else the last line."""
    pattern = re.compile(
        r"(: error: |: fatal error: |CMake Error|^E: |undefined reference|error while loading shared)"
    )
    hit = next((line.strip() for line in lines if pattern.search(line)), None)
    return hit or next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")


_Maker = Callable[[str, list[str], Path, int], HaloforgeError]
_KNOWN: Final[tuple[tuple[str, _Maker], ...]] = (
    (r"No space left on device|no space left on device", _disk),
    (r"Killed signal terminated program|fatal error: Killed|signal 9|[Cc]annot allocate memory", _killed),
    (r"haloforge: pinned ", _moved),
    (r"haloforge: (expected|a shared library|a file is|this base)", _own),
    (r"Temporary failure resolving|Could not resolve|Failed to fetch|Connection timed out", _network),
    (r"Cannot connect to the Docker daemon|Is the docker daemon running", _daemon),
    (r"unknown (shorthand )?flag: .*|'buildx' is not a docker command|buildx component is missing", _plugin),
)
