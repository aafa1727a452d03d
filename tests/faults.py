"""The proof that the checks can fail: every fault on its engine, and which checks catch it.

A fault is a patch of `patches/faults` on top of the series, or one of our own patches left out. Each is
built into an image of the cpu flavour, and the suite runs against it on the tiny models. The first run
makes all checks, for the table; the others make the check that must catch it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import say
from checks import suite
from checks.launcher import HostLauncher, ImageLauncher, Launcher, Model
from checks.report import Outcome, Report, Result
from checks.room import Room
from errors import BadInput, nearest
from paths import replacing
from tests.makers import tiny

ACCEPTED: Final = ("slots.words", "slots.tools")
"""Random weights follow no instructions; these two run on the stub and on real models."""

SEED: Final = 1
SIZES: Final = tiny.Qwen4Exp(layers=4, interval=2, ngram_layer=0)
"""Half the layers of the usual trunk, of both kinds by turns: the suite takes half the time."""

HIDDEN: Final = 1.5
"""The head weighs the hidden state more than the token: what it carries over shows in its drafts."""

OURS: Final = {
    "L1": ("An MTP head with plain attention ends the server while it starts", "spec.active"),
    "L2": ("The drafts of a request depend on the request before it", "spec.repeated"),
    "L3": ("With several slots, a rejected draft restores another slot's state", "spec.crowd"),
    "L4": ("A checkpoint of one text is taken for another text's", "cache.first-token"),
}
"""Faults of b11434 itself, present where our patch is left out: what is wrong, and what must catch it."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One wrong engine: its name, what is wrong, and the check that must say so."""

    id: str
    purpose: str
    caught_by: str

    @property
    def ours(self) -> bool:
        """Whether it is a fault of the pinned engine, cured by a patch of ours."""
        return self.id in OURS


@dataclass(frozen=True, kw_only=True)
class Row:
    """What the checks said of one engine: the failed ones of each run, the first run with all checks."""

    fault: Fault
    failed: tuple[tuple[str, ...], ...]

    @property
    def caught(self) -> int:
        """In how many runs the right check failed."""
        return sum(self.fault.caught_by in failed for failed in self.failed)

    @property
    def good(self) -> bool:
        """Whether every run caught it by the right name."""
        return self.caught == len(self.failed) > 0


@dataclass(frozen=True, kw_only=True)
class Table:
    """All faults, and how many runs the engine without faults passed of how many."""

    rows: tuple[Row, ...]
    clean_passed: int
    clean_runs: int

    @property
    def good(self) -> bool:
        """Whether all faults were caught and the good engine never was."""
        return all(row.good for row in self.rows) and self.clean_passed == self.clean_runs

    def text(self) -> str:
        """The table as Markdown."""
        lines = [
            "| fault | what is wrong | must be caught by | caught | all checks that failed |",
            "|---|---|---|---|---|",
        ]
        for row in self.rows:
            others = ", ".join(row.failed[0]) if row.failed else ""
            lines.append(
                f"| {row.fault.id} | {row.fault.purpose} | {row.fault.caught_by} | {row.caught} of"
                f" {len(row.failed)} | {others} |"
            )
        lines += ["", f"The engine without faults passed {self.clean_passed} of {self.clean_runs} runs."]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The table as plain values."""
        return {
            "good": self.good,
            "clean": {"passed": self.clean_passed, "runs": self.clean_runs},
            "faults": [
                {
                    "id": row.fault.id, "purpose": row.fault.purpose, "must": row.fault.caught_by,
                    "caught": row.caught, "runs": len(row.failed),
                    "failed": [list(run) for run in row.failed],
                }
                for row in self.rows
            ],
        }  # fmt: skip


def known() -> list[Fault]:
    """All faults: those of the pinned engine first, then the planted ones."""
    from patches import series

    own = [Fault(id=name, purpose=purpose, caught_by=by) for name, (purpose, by) in OURS.items()]
    planted = [
        Fault(id=entry.id, purpose=entry.purpose, caught_by=entry.proved_by)
        for entry in series.read(series.FAULTS).patches
    ]
    return own + planted


def select(only: Collection[str]) -> list[Fault]:
    """The faults of these names, or all.

    Raises:
        BadInput: there is no fault of that name.
    """
    faults = known()
    names = [fault.id for fault in faults]
    for name in only:
        if name not in names:
            raise BadInput(f"there is no fault {name!r}", hint=nearest(name, names))
    return [fault for fault in faults if not only or fault.id in only]


def models(folder: Path) -> dict[str, Model]:
    """The tiny pair; the same trunk with a head of plain attention; and a dense model without a head.

    The trunk's indexer chooses the cells of attention by itself, which hides a wrong mask: the dense
    model shows it.
    """
    trunk = tiny.trunk(folder / "trunk.gguf", seed=SEED, sizes=SIZES)
    head = tiny.head(folder / "head.gguf", seed=SEED, hidden=HIDDEN, sizes=SIZES)
    plain = tiny.head(folder / "plain.gguf", seed=SEED, hidden=HIDDEN, dense=True, sizes=SIZES)
    return {
        "pair": Model(path=trunk, draft=head),
        "dense-head": Model(path=trunk, draft=plain),
        "dense": Model(path=tiny.dense(folder / "dense.gguf", seed=SEED)),
    }


def engine(fault: Fault | None, programs: Path | None) -> Callable[[Model], Launcher]:
    """What starts an engine with this fault, or the good one: a host build, else an image that is built
    if it is not there."""
    if programs:
        folder = programs / (fault.id if fault else "clean")
        return lambda model: HostLauncher(folder, model)
    from images import build, flavours
    from patches import engines, tree

    planted = [fault.id] if fault and not fault.ours else []
    without = [fault.id] if fault and fault.ours else []
    made = tree.patched(engines.load(), without=without, faults=planted)
    image = build.build(flavours.load("cpu"), made).id
    return lambda model: ImageLauncher(image, model)


def check(
    start: Callable[[Model], Launcher], files: Sequence[Model], *, only: Collection[str] = ()
) -> Report:
    """One quick run of the suite on each model; what failed on any of them has failed."""
    results: list[Result] = []
    for model in files:
        with Room(launcher=start(model), quick=True) as room:
            accepted = (*ACCEPTED, *(() if model.drafts else ("spec",)))
            report = suite.run(room, target=model.path.name, only=only, accept=accepted)
        results += [result for result in report.results if report.bad(result) or model is files[0]]
    return Report(name="check", target="an engine", results=tuple(results), accepted=frozenset(ACCEPTED))


def run(*, only: Collection[str] = (), runs: int = 3, clean: int = 1, programs: Path | None = None) -> Table:
    """Build and check every fault.

    Args:
        only: names of faults; empty takes all.
        runs: how often each fault is checked.
        clean: how often the engine without faults is checked.
        programs: a folder with host builds, one subfolder per fault and one named clean.
    """
    with tempfile.TemporaryDirectory(prefix="haloforge-faults-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        files = models(folder)
        rows = [_row(fault, files, runs, programs) for fault in select(only)]
        passed = 0
        for turn in range(clean):
            report = check(engine(None, programs), [files["pair"], files["dense"]])
            passed += report.passed
            said = "passed" if report.passed else "FAILED " + ", ".join(_failed(report))
            say.step("clean", f"run {turn + 1} of {clean}: {said}")
    return Table(rows=tuple(rows), clean_passed=passed, clean_runs=clean)


def _row(fault: Fault, files: dict[str, Model], runs: int, programs: Path | None) -> Row:
    chosen = [files["dense-head"]] if fault.id == "L1" else [files["pair"], files["dense"]]
    start = engine(fault, programs)
    failed = []
    for turn in range(runs):
        report = check(start, chosen, only=() if turn == 0 else [fault.caught_by])
        failed.append(_failed(report))
        say.step("fault", f"{fault.id}, run {turn + 1} of {runs}: {', '.join(failed[-1]) or 'NOT CAUGHT'}")
    return Row(fault=fault, failed=tuple(failed))


def _failed(report: Report) -> tuple[str, ...]:
    """Ids of the failed checks, each once."""
    return tuple(dict.fromkeys(r.id for r in report.results if r.outcome is Outcome.FAILED))


def write(table: Table, path: Path) -> None:
    """Write the table as a document."""
    with replacing(path) as temporary:
        temporary.write_text(f"{INTRODUCTION}\n{table.text()}\n", encoding="utf-8")


INTRODUCTION: Final = """# Planted faults, and the checks that catch them

Written by `./inv check.faults --out docs/faults.md`. Each planted fault changes one or two lines of
llama.cpp b11434 with our series on it (`patches/faults`); L1 to L4 are faults of b11434 itself,
with our patch left out. The checks run on a tiny qwen4exp pair and a tiny dense model (L1: with a
head of plain attention). The trunk's indexer chooses the cells of attention by itself and hides a
wrong mask, which the dense model shows. The first run of each fault makes all quick checks, the
others the check that must catch it.

The weights are random, so `slots.words` and `slots.tools`, which need a model that follows
instructions, are left out here and proven on a stub (`tests/contract/test_checks_suite.py`), with
the faults of a server that no patch of the engine shows: the answer before on 1 of 12 requests,
slashes from request 20 on, broken tool calls after a start, sockets closed while healthy, a pool
that overruns, streams that break off, dead drafts.
"""
