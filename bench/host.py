"""Facts about the host that a figure depends on, and a watch over its memory while a point runs."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

MEMINFO = Path("/proc/meminfo")
DRM = Path("/sys/class/drm")


def facts() -> dict[str, Any]:
    """Processor, memory, kernel, governor and GPU memory of this machine; what cannot be read is left out."""
    found: dict[str, Any] = {
        "cpu": cpu_name(_read(Path("/proc/cpuinfo"))),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": meminfo(_read(MEMINFO)).get("MemTotal"),
        "kernel": platform.release(),
        "governor": _read(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")).strip(),
        "load": round(os.getloadavg()[0], 2),
        **gpu_memory(DRM),
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


def cpu_name(cpuinfo: str) -> str:
    """The model name of the first processor in /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo by field name, in bytes."""
    fields = (line.split() for line in text.splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in fields if len(words) == 3}


def gpu_memory(drm: Path) -> dict[str, int]:
    """GTT of the first GPU that reports it (card numbers differ between machines), in bytes."""
    for device in sorted(drm.glob("card*/device")):
        total, used = _read(device / "mem_info_gtt_total"), _read(device / "mem_info_gtt_used")
        if total.strip() and used.strip():
            return {"gtt_total_bytes": int(total), "gtt_used_bytes": int(used)}
    return {}


def available_bytes() -> int:
    """MemAvailable of this host."""
    return meminfo(_read(MEMINFO))["MemAvailable"]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a watch saw, in bytes: MemAvailable at its start and at its lowest, GTT at its highest."""

    start: int
    lowest: int
    gtt_peak: int | None

    @property
    def drop(self) -> int:
        return self.start - self.lowest


class Watch:
    """Samples MemAvailable and GTT until the block ends.

    Below `floor` bytes it calls `on_low` once: the guard of a sweep. GTT memory is in no cgroup and in no
    process's size, so the host's MemAvailable is the only honest measure (SEED.md A1).
    """

    def __init__(
        self, *, floor: int = 0, on_low: Callable[[], None] | None = None, every_s: float = 0.1
    ) -> None:
        self.floor, self.on_low, self.every_s = floor, on_low, every_s
        self.tripped = False
        self._ended = threading.Event()
        self._start = self._lowest = available_bytes()
        self._gtt: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def seen(self) -> Seen:
        return Seen(start=self._start, lowest=self._lowest, gtt_peak=self._gtt)

    def _run(self) -> None:
        while not self._ended.is_set():
            now = available_bytes()
            self._lowest = min(self._lowest, now)
            gtt = gpu_memory(DRM).get("gtt_used_bytes")
            if gtt is not None:
                self._gtt = max(self._gtt or 0, gtt)
            if now < self.floor and not self.tripped:
                self.tripped = True
                if self.on_low is not None:
                    self.on_low()
            self._ended.wait(self.every_s)


def wait_until(condition: Callable[[], bool], *, timeout_s: float, every_s: float = 0.1) -> bool:
    """Whether a condition came true in time."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(every_s)
    return condition()
