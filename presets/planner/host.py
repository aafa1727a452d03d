"""What this host has, read at the edge: memory from /proc/meminfo, GTT from the amdgpu driver's sysfs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from errors import BadInput, HostLacks
from presets.planner.terms import GIB, Budget

MEMINFO: Final = Path("/proc/meminfo")
CARDS: Final = Path("/sys/class/drm")
DEFAULT_RESERVE_GIB: Final = 6.0
"""For the desktop and page cache of a 128 GB machine (the seed's figure)."""
LEAST_RESERVE_GIB: Final = 1.0


def meminfo(text: str, field: str = "MemAvailable") -> int:
    """A field of /proc/meminfo in bytes.

    Raises:
        HostLacks: the text has no such line.
    """
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    raise HostLacks(f"/proc/meminfo has no {field}", hint="plan for a known machine with --free GIB")


def gtt_bytes(cards: Path = CARDS) -> int | None:
    """The largest GTT of all cards, as the driver states it; None without an amdgpu card."""
    totals = []
    for path in sorted(cards.glob("card*/device/mem_info_gtt_total")):
        try:
            totals.append(int(path.read_text()))
        except (OSError, ValueError):
            continue
    return max(totals, default=None)


def reserve_bytes(total_bytes: int, reserve_gib: float | None = None) -> int:
    """What is left to the rest of the system: as told, else 6 GiB, on small hosts an eighth of memory."""
    if reserve_gib is not None:
        return int(reserve_gib * GIB)
    return int(min(DEFAULT_RESERVE_GIB * GIB, max(total_bytes // 8, LEAST_RESERVE_GIB * GIB)))


def budget(
    *,
    free_gib: float | None = None,
    reserve_gib: float | None = None,
    container_mib: int | None = None,
    freed_bytes: int = 0,
    meminfo_path: Path = MEMINFO,
    cards: Path = CARDS,
) -> Budget:
    """The budget of this host, or of one with `free_gib` available.

    Args:
        freed_bytes: memory that will be free because what holds it is stopped first.

    Raises:
        BadInput: a negative amount.
        HostLacks: memory cannot be read.
    """
    for name, value in (("--free", free_gib), ("--reserve", reserve_gib)):
        if value is not None and value < 0:
            raise BadInput(f"{name} is {value}", why="it must not be negative", hint=f"{name} 16")
    container = None if container_mib is None else container_mib * 2**20
    if free_gib is not None:
        given = int(free_gib * GIB)
        reserve = reserve_bytes(given, reserve_gib)
        return Budget(available_bytes=given, reserve_bytes=reserve, container_bytes=container)
    try:
        text = meminfo_path.read_text()
    except OSError as error:
        raise HostLacks(
            f"cannot read {meminfo_path}", why=str(error), hint="plan for a known machine with --free GIB"
        ) from error
    return Budget(
        available_bytes=meminfo(text) + freed_bytes,
        reserve_bytes=reserve_bytes(meminfo(text, "MemTotal"), reserve_gib),
        gtt_bytes=gtt_bytes(cards),
        container_bytes=container,
    )
