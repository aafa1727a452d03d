"""The error table: what the planner says for runs that others measured on gfx1151, row by row.

Measurements are data (`published.yaml`). A row counts either the device alone (GTT) or everything (the drop
of MemAvailable). What a short run does not fill, prompt cache and checkpoints, is taken as the row states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import documents
from patches import engines
from presets import catalog
from presets.planner import caches, headers
from presets.planner.architecture import describe
from presets.planner.assess import Plan, Question, assess
from presets.planner.options import Options
from presets.planner.terms import GFX1151, GIB, Budget

PUBLISHED: Final = Path(__file__).with_name("published.yaml")
MODEL: Final = "qwen3.8-flash-next"
GOAL: Final = 0.02
ENDLESS: Final = Budget(available_bytes=1 << 50, reserve_bytes=0)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published measurement beside ours, in bytes."""

    id: str
    source: str
    counts: str
    measured: int
    planned: int
    note: str

    @property
    def error(self) -> float:
        """Planned over measured, less one."""
        return self.planned / self.measured - 1


@cache
def published() -> dict[str, Any]:
    """The content of published.yaml."""
    found = documents.read(PUBLISHED)
    assert isinstance(found, dict)
    return found


def question(entry: Mapping[str, Any]) -> Question:
    """The question that a row of published.yaml asks."""
    quant = catalog.quant(MODEL, entry["quant"])
    given = entry["options"]
    kind = given.get("kv", "q8_0")
    n_max = given.get("n_max", 0)
    header = headers.outline(MODEL, quant.bytes or 0)
    assert header is not None
    return Question(
        header=header,
        draft=headers.head_outline(MODEL, entry["head_bytes"]) if "head_bytes" in entry else None,
        options=Options(
            ctx=given["ctx"], slots=given["slots"], kv_unified=given.get("kv_unified", False),
            batch=given["batch"], ubatch=given["ubatch"], cache_type_k=kind, cache_type_v=kind,
            spec_types=("draft-mtp",) if n_max else (), draft_n_max=n_max or 3, load_mode="none",
            lazy_mode="on", cache_ram_mib=0, ctx_checkpoints=0,
        ),
        traits=engines.load(entry["engine"]).traits, device=GFX1151, budget=ENDLESS, outlined=True,
    )  # fmt: skip


def rows() -> list[Row]:
    """Every published row with our figure."""
    return [_row(entry) for entry in published()["rows"]]


def _row(entry: Mapping[str, Any]) -> Row:
    asked = question(entry)
    plan = assess(asked)
    planned = plan.bytes_on("device") if entry["counts"] == "device" else plan.total_bytes
    planned += int(entry.get("cached_gib", 0) * GIB)
    if entry.get("checkpoints"):
        planned += _checkpoints(asked, plan, entry["checkpoints"])
    return Row(
        id=entry["id"], source=entry["source"], counts=entry["counts"], measured=int(entry["gib"] * GIB),
        planned=planned, note=entry.get("note", ""),
    )  # fmt: skip


def _checkpoints(asked: Question, plan: Plan, count: int) -> int:
    one = caches.checkpoint(describe(asked.header), plan.shape, asked.options, asked.traits)
    return count * one.bytes_at(plan.per_slot_context) if one else 0


def table(found: list[Row]) -> str:
    """The error table as Markdown."""
    lines = ["| run | source | counts | measured GiB | planned GiB | error |", "|---|---|---|---:|---:|---:|"]
    lines += [
        f"| {row.id} | {row.source} | {row.counts} | {row.measured / GIB:.2f} | {row.planned / GIB:.2f} "
        f"| {row.error:+.1%} |"
        for row in found
    ]
    return "\n".join(lines)


def document(found: list[Row]) -> str:
    """docs/planner-error.md: the table, how good that is, and a reason for every miss."""
    inside = [row for row in found if abs(row.error) <= GOAL]
    worst = max(found, key=lambda row: abs(row.error))
    terms = {row.id: _shares(row.id) for row in found if abs(row.error) > GOAL}
    missed = [f"- **{name}**: {text}" for name, text in terms.items()]
    return "\n".join(
        [
            "# How far the planner is off",
            "",
            "Made by `./inv plan.errors`; do not edit. Measurements by others on gfx1151 with",
            "Qwen3.8-Flash-Next (`presets/planner/published.yaml` says whose); ours from the catalog's",
            "outline and the traits of the tree that ran. Exact terms are proven elsewhere, to 0.01 MiB,",
            "against the engine itself (`tests/unit/test_planner_engine.py`); what is uncertain here is",
            "compute, runtime, and what the authors did not state.",
            "",
            table(found),
            "",
            f"{len(inside)} of {len(found)} rows are within {GOAL:.0%}; the largest error is "
            f"{worst.error:+.1%} ({worst.id}).",
            "",
            "## Misses",
            "",
            *(missed or ["None."]),
            "",
        ]
    )


def _shares(name: str) -> str:
    """Why a row may be off: its note, and the terms that are not exact."""
    entry = next(entry for entry in published()["rows"] if entry["id"] == name)
    plan = assess(question(entry))
    loose = [term for term in plan.terms if term.certainty != "exact" and "weights" not in term.name]
    if entry["counts"] == "device":
        loose = [term for term in loose if term.where == "device"]
    loose.sort(key=lambda term: -term.bytes)
    parts = ", ".join(f"{term.name} {term.bytes / GIB:.2f}" for term in loose[:3])
    note = entry.get("note") or "the engine's behaviour at this shape is known from its logs only"
    return f"{note}. Not exact, GiB: {parts}."
