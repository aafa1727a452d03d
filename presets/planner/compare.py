"""A plan beside a server's log: what was promised and what the engine says it took."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from presets.planner import log
from presets.planner.terms import MIB, Certainty, Term, Where

LAST_DIGIT_MIB = 0.0051
TOLERANCE = 0.1
"""Share by which a measured term may be over or under what is logged."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One group of buffers in MiB; `logged` None means that the log does not say.

    `buffers` is how many rounded numbers of the log add up to `logged`.
    """

    name: str
    planned: float
    logged: float | None
    certainty: Certainty
    buffers: int = 1

    @property
    def holds(self) -> bool | None:
        """Whether the plan kept its promise; None where nothing was measured."""
        if self.logged is None:
            return None
        over = self.logged - self.planned
        if self.certainty == "exact":
            return abs(over) <= max(LAST_DIGIT_MIB * self.buffers, self.planned * 1e-5)
        if self.certainty == "bounded":
            return over <= LAST_DIGIT_MIB * self.buffers
        return abs(over) <= max(1.0, self.planned * TOLERANCE)

    def to_json(self) -> dict[str, Any]:
        """One line of the document; `logged_mib` null is "not measured"."""
        return {
            "name": self.name, "planned_mib": round(self.planned, 3), "logged_mib": self.logged,
            "certainty": self.certainty, "holds": self.holds,
        }  # fmt: skip


class Planned(Protocol):
    """What is compared of a plan: its terms, also of one that was stored."""

    @property
    def terms(self) -> tuple[Term, ...]: ...
    def bytes_on(self, where: Where) -> int: ...


def lines(plan: Planned, logged: log.Logged) -> list[Line]:
    """The plan's terms in the groups that a log tells apart, target and draft together."""
    sums = log.totals(logged)
    kv = ("kv_cache", "kv_cache_swa", "indexer_cache", "draft_kv_cache")
    state = ("recurrent_state", "draft_recurrent_state")
    contexts = [context for load in logged.loads for context in load.contexts]
    caches = sum(len(lines) for context in contexts for lines in context.caches.values())
    found = [
        replace(_line(plan, "KV caches", kv, sums.kv), buffers=max(caches, 1)),
        _line(plan, "recurrent state", state, sums.state),
    ]
    if plan.bytes_on("device"):
        weights = ("weights_device", "draft_weights")
        compute = ("compute_device", "draft_compute")
        found.insert(0, _line(plan, "weights on the device", weights, sums.weights_device, "device"))
        found.append(_line(plan, "compute on the device", compute, sums.compute_device, "device"))
        compute = ("compute_host", "draft_compute")
        found.append(_line(plan, "compute on the host", compute, sums.compute_host, "host"))
    else:
        compute = ("compute_host", "draft_compute")
        found.append(_line(plan, "compute", compute, sums.compute_host))
    return [line for line in found if line.planned or line.logged]


def _line(
    plan: Planned, name: str, terms: tuple[str, ...], logged: float | None, where: str | None = None
) -> Line:
    own = [term for term in plan.terms if term.name in terms and where in (None, term.where)]
    order: tuple[Certainty, ...] = ("exact", "measured", "bounded")
    loosest = order[max((order.index(term.certainty) for term in own), default=0)]
    return Line(name=name, planned=sum(term.bytes for term in own) / MIB, logged=logged, certainty=loosest)


def text(found: list[Line], logged: log.Logged) -> str:
    """A table for people; failures first."""
    told = [f"{log.failure(logged)}", ""] if log.failure(logged) else []
    if not logged.measured:
        told += ["not measured: the log has no buffer lines; start the server with -lv 4", ""]
    told.append(f"{'':<24}{'planned MiB':>14}{'logged MiB':>14}{'off':>9}")
    for line in found:
        shown = "not measured" if line.logged is None else f"{line.logged:,.2f}"
        off = f"{line.planned / line.logged - 1:+.1%}" if line.logged else ""
        mark = {True: "holds", False: "BROKEN", None: ""}[line.holds]
        told.append(f"{line.name:<24}{line.planned:>14,.2f}{shown:>14}{off:>9}  {line.certainty:<9}{mark}")
    return "\n".join(told)
