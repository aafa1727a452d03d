"""BuildKit's plain progress, read line by line and shown as one bar or as a line now and then."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import say

_STEP: Final = re.compile(r"^#\d+ \[(?:(?P<stage>[\w.-]+) )?\s*(?P<at>\d+)/(?P<of>\d+)\] (?P<what>.*)")
_NINJA: Final = re.compile(r"^#\d+ [\d.]+ \[(?P<done>\d+)/(?P<all>\d+)\] (?P<what>.*)")
_CACHED: Final = re.compile(r"^#\d+ CACHED$")
_EVERY_S: Final = 15.0


@dataclass(kw_only=True)
class Seen:
    """How far a build is. `compiled` and `to_compile` count Ninja's steps; both are 0 before it starts."""

    step: str = ""
    compiled: int = 0
    to_compile: int = 0
    cached: int = 0

    def take(self, line: str) -> bool:
        """Read one line of BuildKit; returns whether it says anything new about the state."""
        if match := _NINJA.match(line):
            self.compiled, self.to_compile = int(match["done"]), int(match["all"])
            return True
        if match := _STEP.match(line):
            before, self.step = (
                self.step,
                f"{match['stage'] or ''} {match['at']}/{match['of']} {match['what'][:60]}".strip(),
            )
            return self.step != before
        if _CACHED.match(line):
            self.cached += 1
        return False


@dataclass(kw_only=True)
class Progress:
    """Writes every line to a log file, and shows the state: a bar on a terminal, else a line each 15 s."""

    log: Path
    seen: Seen = field(default_factory=Seen)
    _file: IO[str] | None = None
    _bar: Any = None
    _task: Any = None
    _last: float = 0.0
    _said: str = ""

    def __enter__(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.log.open("w", encoding="utf-8")
        if sys.stderr.isatty():
            self._open_bar()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._file is not None:
            self._file.close()

    def _open_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("starting", total=None)
        self._bar.start()

    def line(self, text: str) -> None:
        """Take one line of BuildKit's output."""
        if self._file is not None:
            self._file.write(text + "\n")
            self._file.flush()
        if self.seen.take(text):
            self._show()

    def _show(self) -> None:
        seen = self.seen
        if self._bar is not None:
            self._bar.update(
                self._task, description=seen.step[:60], completed=seen.compiled, total=seen.to_compile or None
            )
            return
        now = time.monotonic()
        if seen.step != self._said or now - self._last >= _EVERY_S:
            compiled = f" ({seen.compiled} of {seen.to_compile} compiled)" if seen.to_compile else ""
            say.step("build", seen.step + compiled)
            self._said, self._last = seen.step, now
