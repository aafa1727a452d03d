"""How far a set of downloads is: bars on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TextIO

import say

PLAIN_EVERY_S: Final = 10.0
RATE_OVER_S: Final = 15.0
WORTH_WATCHING: Final = 1 << 30
SHOW_EVERY_S: Final = 0.1


@dataclass(frozen=True, kw_only=True)
class Sight:
    """One file of a set: bytes that are here, bytes in all."""

    name: str
    done: int
    total: int


class Progress(AbstractContextManager["Progress"], Protocol):
    """Shows the state of a set each time it is told."""

    def show(self, files: Sequence[Sight]) -> None:
        """Take note of where each file is."""


class Rate:
    """Bytes per second over the last `RATE_OVER_S` seconds."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def at(self, now: float, done: int) -> float:
        """The rate after `done` bytes at time `now` (seconds); 0 until there is a second sample."""
        self.seen = [(when, size) for when, size in self.seen if now - when <= RATE_OVER_S] + [(now, done)]
        first_when, first_size = self.seen[0]
        return max(0.0, (done - first_size) / (now - first_when)) if now > first_when else 0.0


class Plain:
    """Lines such as `models  12.3 GiB of 46.4 GiB (26 %), 112.0 MiB/s, 5 min left`."""

    def __init__(self, every_s: float = PLAIN_EVERY_S) -> None:
        self.every_s, self.last, self.rate = every_s, time.monotonic(), Rate()

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, files: Sequence[Sight]) -> None:
        """Print a line if the last one is `every_s` old."""
        now = time.monotonic()
        rate = self.rate.at(now, sum(file.done for file in files))
        if now - self.last >= self.every_s:
            self.last = now
            say.step("models", line(files, rate))


def line(files: Sequence[Sight], rate: float) -> str:
    """The state of a set in one line."""
    done, total = sum(file.done for file in files), sum(file.total for file in files)
    percent = 100 * done // total if total else 100
    left = f", {duration((total - done) / rate)} left" if rate else ""
    going = [f"{file.name} {100 * file.done // file.total} %" for file in files if 0 < file.done < file.total]
    return (
        f"{say.size(done)} of {say.size(total)} ({percent} %), {say.size(int(rate))}/s{left}"
        + (" · " if going else "")
        + ", ".join(going)
    )


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(42), duration(3000), duration(9000)
    ('42 s', '50 min', '2 h 30 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Bars:
    """A bar per file and one for the whole set, on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bar

        self.bars = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.tasks = [self.bars.add_task("all", total=None)]

    def __enter__(self) -> Bars:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def show(self, files: Sequence[Sight]) -> None:
        """Move the bars."""
        while len(self.tasks) <= len(files):
            self.tasks.append(self.bars.add_task(files[len(self.tasks) - 1].name, total=None))
        done, total = sum(file.done for file in files), sum(file.total for file in files)
        self.bars.update(self.tasks[0], completed=done, total=total)
        for task, file in zip(self.tasks[1:], files, strict=True):
            self.bars.update(task, completed=file.done, total=file.total)


def watched(path: Path, read: Callable[[Path, Callable[[int], None]], str]) -> str:
    """Read a file whole by `read(path, on_bytes)`; show how far it is if that takes long enough to matter."""
    size = path.stat().st_size
    if size < WORTH_WATCHING:
        return read(path, lambda _: None)
    done, last = 0, 0.0
    with progress() as view:

        def tell(count: int) -> None:
            nonlocal done, last
            done += count
            if time.monotonic() - last > SHOW_EVERY_S:
                last = time.monotonic()
                view.show([Sight(name=path.name, done=done, total=size)])

        return read(path, tell)


def progress(stream: TextIO | None = None) -> Progress:
    """Bars where standard error is a terminal, plain lines elsewhere."""
    return Bars() if (stream or sys.stderr).isatty() else Plain()
