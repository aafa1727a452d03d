"""The engine's own projection as terms: pure, from the log of its fitting pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from presets.planner.log import CacheKind, Context, Logged, on_host
from presets.planner.terms import MIB, Device, Term, Where

ENOUGH: Final = "fitting params to free memory took"
"""What llama-server prints when its fitting pass is over, before any weight is read."""
SOURCE: Final = "projected by the engine itself"


def extra_arguments(port: int) -> list[str]:
    """What makes a server print its projection; given last, where the engine lets them win."""
    return ["-fit", "on", "-lv", "5", "--log-jsonl", "--host", "127.0.0.1", "--port", str(port)]


def contexts(logged: Logged) -> list[Context]:
    """The contexts of the fitting pass in order: the target, then the draft if there is one."""
    return [context for load in logged.projections for context in load.contexts]


def terms(logged: Logged, device: Device) -> list[Term]:
    """The target's and the draft's buffers as the engine sized them; empty when it printed none."""
    found = contexts(logged)
    if not found or not logged.breakdowns:
        return []
    side = device.layers_on
    target = found[0]
    sized = [
        ("kv_cache", target.cache_mib("kv_cache")),
        ("kv_cache_swa", target.cache_mib("kv_cache_swa")),
        ("indexer_cache", target.cache_mib("indexer_cache")),
        ("recurrent_state", target.state_mib()),
    ]
    told = [_term(name, size, side) for name, size in sized if size]
    told += _compute(target, "compute_device", "compute_host")
    if len(found) > 1:
        told += _draft(found[1], side)
    return told


def _draft(draft: Context, side: Where) -> list[Term]:
    kinds: tuple[CacheKind, ...] = ("kv_cache", "kv_cache_swa", "indexer_cache")
    caches = sum(draft.cache_mib(kind) or 0.0 for kind in kinds)
    told = [_term("draft_kv_cache", caches, side)] if caches else []
    if state := draft.state_mib():
        told.append(_term("draft_recurrent_state", state, side))
    return told + _compute(draft, "draft_compute", "draft_compute")


def _compute(context: Context, on_device: str, host: str) -> list[Term]:
    sides: Sequence[tuple[str, Where]] = ((on_device, "device"), (host, "host"))
    told = []
    for name, where in sides:
        size = sum(mib for buffer, mib in context.compute.items() if on_host(buffer) is (where == "host"))
        if size:
            told.append(_term(name, size, where))
    return told


def _term(name: str, mib: float, where: Where) -> Term:
    return Term(name=name, bytes=round(mib * MIB), where=where, certainty="measured", formula=SOURCE)
