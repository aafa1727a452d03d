"""What the patch tasks print: one table for people, one document for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from patches import series
from patches.engines import Engine
from patches.states import State, Verdict, explain


def document(engine: Engine, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The states of a series, with what is off and what was dropped, as one JSON document."""
    data = series.of(engine)
    shown = {verdict.id for verdict in verdicts}
    return {
        "engine": engine.name,
        "pin": engine.pin,
        "good": all(verdict.state is State.APPLIES for verdict in verdicts),
        "patches": [_verdict(verdict) for verdict in verdicts],
        "off": [{"id": e.id, "name": e.name, "why": e.why} for e in data.patches if e.id not in shown],
        "dropped": [d.model_dump() for d in data.dropped],
    }


def table(engine: Engine, verdicts: Sequence[Verdict]) -> str:
    """The same for people; conflicts with file, hunk and nearest lines below the table."""
    data = series.of(engine)
    purpose = {entry.id: entry.purpose for entry in data.patches}
    rows = [(v.id, str(v.state) + _notes(v), purpose.get(v.id, v.name)) for v in verdicts]
    shown = {verdict.id for verdict in verdicts}
    rows += [(e.id, "off", e.why) for e in data.patches if e.id not in shown]
    rows += [(d.id, f"dropped: {d.verdict}", d.because) for d in data.dropped]
    width = [max((len(row[i]) for row in rows), default=0) for i in (0, 1)]
    lines = [f"{engine.name} {engine.pin}: {len(verdicts)} patches on"]
    lines += [f"  {row[0]:{width[0]}}  {row[1]:{width[1]}}  {row[2]}" for row in rows]
    lines += [explain(v) for v in verdicts if v.state is not State.APPLIES]
    return "\n".join(lines)


def _notes(verdict: Verdict) -> str:
    notes = []
    if any(verdict.offsets):
        notes.append("moved by " + ", ".join(f"{n:+}" for n in verdict.offsets if n) + " lines, re-cut it")
    if verdict.retire:
        notes.append("retire it: " + verdict.retire)
    return f" ({'; '.join(notes)})" if notes else ""


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "id": verdict.id,
        "name": verdict.name,
        "state": str(verdict.state),
        "offsets": list(verdict.offsets),
        "retire": verdict.retire,
        "held": [{"file": path, "hunk": number} for path, number in verdict.held],
        "misfits": [
            {"file": m.path, "hunk": m.hunk, "reason": m.reason, "nearest": list(m.nearest)}
            for m in verdict.misfits
        ],
    }
