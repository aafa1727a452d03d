"""What checks found: one result each, and the report as a table, as JSON and as JUnit XML."""

from __future__ import annotations

import shlex
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection
from dataclasses import asdict, dataclass
from enum import StrEnum
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paths import replacing


class Outcome(StrEnum):
    """How a check ended. `skipped` counts as a failure unless it was accepted beforehand."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One check's result.

    Args:
        id: its name, as `--only` takes it.
        proves: what a pass means, in one sentence.
        outcome: how it ended.
        detail: the figures of a pass, the reason of a failure, the missing precondition of a skip.
        expected: the output it should have been, where there are two outputs to compare.
        got: the output it was.
        repeat: the one command that repeats it.
        seconds: wall time.
        upstream: the issue that such a check would have caught, where there is one.
    """

    id: str
    proves: str
    outcome: Outcome
    detail: str = ""
    expected: str = ""
    got: str = ""
    repeat: str = ""
    seconds: float = 0.0
    upstream: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """All results of one run.

    Args:
        name: smoke or check.
        target: what was checked.
        results: in the order they were made.
        accepted: ids whose skip was accepted beforehand.
        left_out: ids of checks that need to start servers, where only a running one was given.
    """

    name: str
    target: str
    results: tuple[Result, ...]
    accepted: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()

    def bad(self, result: Result) -> bool:
        """Whether this result makes the run a failure."""
        skip_counts = result.outcome is Outcome.SKIPPED and result.id not in self.accepted
        return result.outcome is Outcome.FAILED or skip_counts

    @property
    def passed(self) -> bool:
        """Whether everything that was asked for holds; a run without a single pass does not."""
        some = any(result.outcome is Outcome.PASSED for result in self.results)
        return some and not any(map(self.bad, self.results))

    @property
    def failures(self) -> tuple[Result, ...]:
        """The results that make the run a failure."""
        return tuple(filter(self.bad, self.results))

    def table(self, width: int | None = None) -> str:
        """The results for people, the outputs of each failure below."""
        shown = Table(
            "check", "result", "s", "what was seen", title=f"{self.name} of {self.target}", box=None
        )
        for result in self.results:
            mark = "ok" if result.outcome is Outcome.PASSED else result.outcome.value
            accepted = result.outcome is Outcome.SKIPPED and not self.bad(result)
            shown.add_row(
                result.id, mark + (" (accepted)" if accepted else ""), f"{result.seconds:.1f}",
                escape(result.detail),
            )  # fmt: skip
        out = StringIO()
        console = Console(file=out, width=width or 110, highlight=False, color_system=None)
        console.print(shown)
        for result in self.failures:
            console.print(escape(_story(result)), soft_wrap=True)
        for line in self._notes():
            console.print(escape(line), soft_wrap=True)
        return out.getvalue().rstrip()

    def _notes(self) -> list[str]:
        """What was not checked, and how to have it checked or accept that it was not."""
        skipped = [result.id for result in self.failures if result.outcome is Outcome.SKIPPED]
        notes = []
        if skipped:
            flags = " ".join(f"--accept {name}" for name in skipped)
            notes.append(f"a skipped check counts as a failure; to accept these: {flags}")
        if self.left_out:
            notes.append(
                f"{len(self.left_out)} checks start servers of their own and were left out:"
                " ./inv check --image IMAGE --model FILE makes them"
            )
        return notes

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "name": self.name,
            "target": self.target,
            "passed": self.passed,
            "accepted": sorted(self.accepted),
            "left_out": list(self.left_out),
            "results": [{**asdict(result), "outcome": result.outcome.value} for result in self.results],
        }

    def junit(self) -> str:
        """The report as JUnit XML: one suite, one case per check."""
        bad = self.failures
        suite = ElementTree.Element(
            "testsuite", name=f"haloforge.{self.name}", tests=str(len(self.results)), failures=str(len(bad)),
            time=f"{sum(result.seconds for result in self.results):.3f}",
        )  # fmt: skip
        for result in self.results:
            case = ElementTree.SubElement(
                suite, "testcase", classname=self.name, name=result.id, time=f"{result.seconds:.3f}"
            )
            if result in bad:
                ElementTree.SubElement(case, "failure", message=_printable(result.detail)).text = _printable(
                    _story(result)
                )
            elif result.outcome is Outcome.SKIPPED:
                ElementTree.SubElement(case, "skipped", message=_printable(result.detail))
        return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)

    def write_junit(self, path: Path) -> None:
        """Write the JUnit XML."""
        with replacing(path) as temporary:
            temporary.write_text(self.junit(), encoding="utf-8")


def repeat_command(
    task: str, url: str, *, only: str, key_file: Path | None = None, more: Collection[str] = ()
) -> str:
    """The command line that runs one check again."""
    words = ["./inv", task, "--url", url, *(["--key-file", str(key_file)] if key_file else []), *more]
    return shlex.join([*words, "--only", only])


def _story(result: Result) -> str:
    lines = [f"{result.outcome.value}: {result.id}: {result.proves}", f"  why:      {result.detail}"]
    if result.expected or result.got:
        lines += [f"  expected: {result.expected!r}", f"  got:      {result.got!r}"]
    if result.upstream:
        lines.append(f"  known as: {result.upstream}")
    if result.repeat:
        lines.append(f"  repeat:   {result.repeat}")
    return "\n".join(lines)


def _printable(text: str) -> str:
    """Text without the control characters that XML 1.0 cannot hold."""
    return "".join(letter if letter >= " " or letter in "\t\n" else "\ufffd" for letter in text)
