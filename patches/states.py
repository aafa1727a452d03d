"""What each patch of a series is to a tree: exactly one state, found in memory before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path

from patches.diff import FilePatch, Misfit, offsets, places, split
from patches.engines import Engine
from patches.overlay import Overlay, moved_to
from patches.series import Loaded


class State(StrEnum):
    """What a patch is to a tree.

    `applies`: needed, and fits in exactly one way. `upstream`: the tree holds all of it. `partial`: the
    tree holds some hunks and the others would fit. `conflict`: neither. `foreign`: the folder is no tree
    of this engine, so nothing can be said.
    """

    APPLIES = "applies"
    UPSTREAM = "upstream"
    PARTIAL = "partial"
    CONFLICT = "conflict"
    FOREIGN = "foreign"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The state of one patch, with the evidence.

    Attributes:
        misfits: what does not fit, for `partial` and `conflict`.
        held: (file, hunk number) pairs that the tree holds already.
        offsets: lines by which the hunks have moved since the patch was cut; anything but zeros says that
            it should be re-cut.
        retire: why the patch should go although it fits: its `dropped_when` text stands in the tree.
    """

    id: str
    name: str
    state: State
    misfits: tuple[Misfit, ...] = ()
    held: tuple[tuple[str, int], ...] = ()
    offsets: tuple[int, ...] = ()
    retire: str = ""


def judge(engine: Engine, series: Sequence[Loaded], root: Path) -> tuple[list[Verdict], Overlay]:
    """The state of every patch of a series against a tree, in order, and the tree as it would become.

    Each patch is judged on top of those before it that apply. Where one neither applies nor is held on
    its own, later patches may have rewritten its lines: then patches are taken back from the top of the
    stack downwards, and if all come off, all of them are in the tree.
    """
    overlay = Overlay(root)
    missing = [mark for mark in engine.landmarks if not (root / mark).is_file()]
    if missing:
        return [_foreign(item, missing) for item in series], overlay
    verdicts: list[Verdict] = []
    while len(verdicts) < len(series):
        at = len(verdicts)
        verdict = _alone(series[at], overlay)
        if verdict.state not in (State.APPLIES, State.UPSTREAM):
            held = _held_together(series[at:], overlay)
            if held:
                verdicts += [_verdict(item, State.UPSTREAM) for item in series[at : at + held]]
                continue
        verdicts.append(verdict)
    return verdicts, overlay


def _alone(item: Loaded, overlay: Overlay) -> Verdict:
    """One patch on the overlay; a patch that applies is applied to it."""
    moved = _offsets(item, overlay)
    misfits = overlay.apply(item.patch)
    if not misfits:
        return _verdict(item, State.APPLIES, offsets=moved, retire=_retire(item, overlay.root))
    if not overlay.copy().apply(item.patch.reversed()):
        return _verdict(item, State.UPSTREAM)
    hunks = [hunk for file in item.patch.files for hunk in _hunk_states(file, overlay)]
    held = tuple((path, number) for path, number, inside, outside in hunks if inside and not outside)
    clear = all(inside != outside for _, _, inside, outside in hunks)
    if clear and held and len(held) < len(hunks):
        return _verdict(item, State.PARTIAL, misfits=tuple(misfits), held=held)
    return _verdict(item, State.CONFLICT, misfits=tuple(_with_moves(misfits, item, overlay)), held=held)


def _hunk_states(file: FilePatch, overlay: Overlay) -> list[tuple[str, int, bool, bool]]:
    """(file, hunk number, its new lines stand in the tree, its old lines do) for each hunk.

    A file that a patch makes, deletes or only changes the mode of counts as one hunk, number 0.
    """
    if file.creates or file.deletes or not file.hunks:
        one = overlay.copy()
        inside = one.apply_file(file.reversed()) is None
        return [(file.path, 0, inside, overlay.copy().apply_file(file) is None)]
    there = overlay.file(file.path)
    lines = split(there.content) if there and not overlay.through_link(file.path) else []
    return [
        (file.path, number, bool(places(hunk.reversed(), lines)), bool(places(hunk, lines)))
        for number, hunk in enumerate(file.hunks, 1)
    ]


def _held_together(series: Sequence[Loaded], overlay: Overlay) -> int:
    """How many patches from the first on come off the tree when taken back from the top; 0 if none do."""
    for count in range(len(series), 1, -1):
        trial = overlay.copy()
        if not any(trial.apply(item.patch.reversed()) for item in reversed(series[:count])):
            return count
    return 0


def _offsets(item: Loaded, overlay: Overlay) -> tuple[int, ...]:
    moved: list[int] = []
    trial = overlay.copy()
    for file in item.patch.files:
        there = trial.file(file.path)
        if there and not file.creates and trial.apply_file(file) is None:
            moved += offsets(file, there.content)
    return tuple(moved)


def _with_moves(misfits: Sequence[Misfit], item: Loaded, overlay: Overlay) -> list[Misfit]:
    """The misfits; for a file that is missing, with the place its text has moved to."""
    by_path = {file.path: file for file in item.patch.files}
    told = []
    for misfit in misfits:
        gone = overlay.file(misfit.path) is None and not by_path[misfit.path].creates
        targets = list(islice(moved_to(by_path[misfit.path], overlay.root), 3)) if gone else []
        if targets:
            reason = f"the file does not exist; its lines now stand in {', '.join(targets)}"
            misfit = Misfit(path=misfit.path, hunk=0, reason=reason)
        told.append(misfit)
    return told


def _retire(item: Loaded, root: Path) -> str:
    when = item.entry.dropped_when
    if not (when.file and when.text):
        return ""
    place = root / when.file
    if place.is_file() and when.text.encode() in place.read_bytes():
        return f"{when.file} holds {when.text!r}"
    return ""


def _foreign(item: Loaded, missing: Sequence[str]) -> Verdict:
    return _verdict(
        item,
        State.FOREIGN,
        misfits=tuple(
            Misfit(path=mark, hunk=0, reason="a tree of this engine has this file") for mark in missing
        ),
    )


def _verdict(
    item: Loaded,
    state: State,
    *,
    misfits: tuple[Misfit, ...] = (),
    held: tuple[tuple[str, int], ...] = (),
    offsets: tuple[int, ...] = (),
    retire: str = "",
) -> Verdict:
    return Verdict(
        id=item.entry.id,
        name=item.entry.name,
        state=state,
        misfits=misfits,
        held=held,
        offsets=offsets,
        retire=retire,
    )


def explain(verdict: Verdict) -> str:
    """Why a patch does not apply, in lines for people: file, hunk, reason, nearest lines."""
    lines = [f"{verdict.id} ({verdict.name}): {verdict.state}"]
    for misfit in verdict.misfits:
        place = f"{misfit.path}, hunk {misfit.hunk}" if misfit.hunk else misfit.path
        lines.append(f"  {place}: {misfit.reason}")
        lines += [f"    {line}" for line in misfit.nearest[:12]]
    if verdict.held:
        lines.append("  in the tree already: " + ", ".join(f"{path} hunk {n}" for path, n in verdict.held))
    return "\n".join(lines)
