"""From headers and options to a plan: every term, the verdict, the warnings and the advice. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from patches.traits import Traits
from presets.gguf import Header
from presets.planner import caches, compute, weights
from presets.planner.architecture import Architecture, describe
from presets.planner.options import Options, Shape, shape
from presets.planner.terms import CPU, GIB, MIB, ORDER, Budget, Certainty, Device, Term, Where

Verdict = Literal["fits", "tight", "too-big", "unknown"]

TIGHT_BYTES: Final = 3 * GIB
TIGHT_LAZY_BYTES: Final = 8 * GIB
"""Least headroom that is comfortable; a table read lazily wants page cache (the seed's thresholds)."""
LAST_DIGIT_BYTES: Final = int(0.0051 * MIB)
"""The engine prints hundredths of a MiB."""
PROCESS_BYTES: Final = 36 * MIB
PROCESS_BYTES_PER_TOKEN: Final = 230
"""What llama-server itself keeps: its libraries, and the vocabulary. Resident memory less all buffers after
a first answer, on b11434: 33 MiB with 49,152 tokens, 77 MiB with 262,144 (the formula gives 47 and 94)."""
DRIVER_BYTES: Final = {"cpu": 0, "rocm": 640 * MIB, "vulkan": 640 * MIB}
"""GTT beyond all logged buffers: 400 to 900 MiB on gfx1151 with ROCm (seed, E6); Vulkan by assumption."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a start takes, and whether that fits. All sizes in bytes, contexts in tokens."""

    preset: str
    verdict: Verdict
    budget: Budget
    terms: tuple[Term, ...]
    per_slot_context: int
    kv_cells: int
    shape: Shape
    warnings: tuple[str, ...]
    advice: tuple[str, ...]
    lazy: bool

    @property
    def exit_code(self) -> int:
        """4 where the plan cannot be started safely, else 0."""
        return 4 if self.verdict in ("too-big", "unknown") else 0

    @property
    def total_bytes(self) -> int:
        """The sum of all terms: host and device are one pool on this machine."""
        return sum(term.bytes for term in self.terms)

    @property
    def headroom_bytes(self) -> int:
        """Budget less total; negative when it does not fit."""
        return self.budget.budget_bytes - self.total_bytes

    def bytes_on(self, where: Where) -> int:
        """The sum of the terms on one side."""
        return sum(term.bytes for term in self.terms if term.where == where)

    def bytes_of(self, name: str) -> int:
        """The sum of the terms of one name."""
        return sum(term.bytes for term in self.terms if term.name == name)

    def to_json(self) -> dict[str, Any]:
        """The document of `plan --json`."""
        return {
            "preset": self.preset,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "budget_bytes": self.budget.budget_bytes,
            "reserve_bytes": self.budget.reserve_bytes,
            "total_bytes": self.total_bytes,
            "headroom_bytes": self.headroom_bytes,
            "per_slot_context": self.per_slot_context,
            "kv_cells": self.kv_cells,
            "terms": [
                {key: getattr(term, key) for key in ("name", "bytes", "where", "certainty", "formula")}
                for term in self.terms
            ],
            "warnings": list(self.warnings),
            "advice": list(self.advice),
        }


@dataclass(frozen=True, kw_only=True)
class Question:
    """Everything that decides a plan, so that it can be asked again with one thing changed."""

    header: Header
    draft: Header | None
    options: Options
    traits: Traits
    device: Device
    budget: Budget
    preset: str = ""
    outlined: bool = False


def plan(
    header: Header,
    draft: Header | None,
    options: Options,
    traits: Traits,
    device: Device,
    budget: Budget,
    *,
    preset: str = "",
    outlined: bool = False,
    projection: Sequence[Term] = (),
) -> Plan:
    """Size everything that a start of llama-server allocates, and judge it.

    Args:
        header: of the model, all shards merged.
        draft: of the MTP head or draft model in a file of its own; None for none or an embedded head.
        outlined: the headers are outlines: weights are known by the size of the files alone.
        projection: terms that the engine itself projected; they replace computed ones.

    Raises:
        BadInput: the header lacks a key that the engine demands, or an option cannot be used.
    """
    from presets.planner import advice

    question = Question(
        header=header, draft=draft, options=options, traits=traits, device=device, budget=budget,
        preset=preset, outlined=outlined,
    )  # fmt: skip
    found = assess(question, projection=projection)
    told = disagreements(assess(question).terms, projection) if projection else []
    return replace(
        found, warnings=(*told, *advice.warnings(question, found)), advice=advice.advise(question, found)
    )


def assess(question: Question, *, projection: Sequence[Term] = ()) -> Plan:
    """A plan without warnings and advice."""
    q = question
    arch = describe(q.header)
    drafted = describe(q.draft) if q.draft else None
    rollback = arch.name in q.traits.rollback_architectures and arch.recurrent
    sizes = shape(q.options, q.traits, trained=arch.trained, rollback=rollback)
    placed = weights.place(q.header, arch, q.options, q.traits, q.device, mtp=q.options.uses_mtp)
    found = weights.terms(placed, q.traits)
    found += _context_terms(q, arch, sizes)
    found += _draft_terms(q, arch, drafted, sizes)
    found += _server_terms(q, arch, sizes)
    unknown = not arch.known or (drafted is not None and not drafted.known) or _headless(q, arch, drafted)
    if unknown:
        found = [replace(term, certainty=_loosest(term)) for term in found]
    if q.outlined:
        found = [replace(t, certainty="measured") if "weights" in t.name else t for t in found]
    found = _projected(found, projection)
    ordered = tuple(sorted((t for t in found if t.bytes), key=lambda t: (ORDER.index(t.name), t.where)))
    plan = Plan(
        preset=q.preset, verdict="fits", budget=q.budget, terms=ordered, per_slot_context=sizes.slot_context,
        kv_cells=sizes.context, shape=sizes, warnings=(), advice=(), lazy=placed.lazy,
    )  # fmt: skip
    return replace(plan, verdict="unknown" if unknown and not projection else verdict(plan))


def verdict(plan: Plan) -> Verdict:
    """Judge the headroom, the GTT ceiling and a container's limit."""
    if plan.headroom_bytes < 0:
        return "too-big"
    gtt, limit = plan.budget.gtt_bytes, plan.budget.container_bytes
    if gtt is not None and plan.bytes_on("device") > gtt:
        return "too-big"
    if limit is not None and plan.bytes_on("host") > limit:
        return "too-big"
    comfortable = TIGHT_LAZY_BYTES if plan.lazy else TIGHT_BYTES
    small = plan.total_bytes < comfortable and plan.headroom_bytes > plan.total_bytes // 2
    return "fits" if plan.headroom_bytes >= comfortable or small else "tight"


def _headless(q: Question, arch: Architecture, drafted: Architecture | None) -> bool:
    """Whether an MTP head is asked for on an architecture whose draft context is not known."""
    head = drafted or arch
    return q.options.uses_mtp and head.extra > 0 and not head.mtp


def _loosest(term: Term) -> Certainty:
    return term.certainty if term.name.startswith("weights") else "bounded"


def _side(q: Question) -> Where:
    """Where caches live: with the layers."""
    return q.device.layers_on


def _context_terms(q: Question, arch: Architecture, sizes: Shape) -> list[Term]:
    """The caches and buffers of the main context; caches lie where their layers are."""
    terms = [term for part, where in _parts(q, arch) for term in _cache_terms(q, part, sizes, where)]
    return terms + _compute_terms(q, arch, sizes)


def _parts(q: Question, arch: Architecture) -> list[tuple[Architecture, Where]]:
    """The layers on each side."""
    first = weights.first_offloaded(arch, q.options, q.device)
    if q.device.kind == "cpu" or first >= len(arch.layers):
        return [(arch, "host")]
    if first == 0:
        return [(arch, "device")]
    return [
        (replace(arch, layers=arch.layers[:first]), "host"),
        (replace(arch, layers=arch.layers[first:]), "device"),
    ]


def _cache_terms(q: Question, arch: Architecture, sizes: Shape, where: Where) -> list[Term]:
    own = caches.target(arch, sizes, q.options, q.traits)
    types = f"({q.options.cache_type_k}/{q.options.cache_type_v})"
    rows = max(sizes.slots, 1) * (1 + sizes.rollback)
    cells = f"{sizes.streams} x {own.cells} cells"
    state = f"{caches.state_row(arch)} B x {rows} rows (slots x (1 + rollback))"
    sized = (
        ("kv_cache", own.kv, f"{cells} x layers with their own KV {types}; llama-kv-cache.cpp"),
        (
            "kv_cache_swa",
            own.swa,
            f"{sizes.streams} x {own.swa_cells} cells x window layers {types}; llama-kv-cache-iswa.cpp",
        ),
        ("indexer_cache", own.indexer, f"{cells} x indexer rows; llama-memory-hybrid-idx.cpp"),
        ("recurrent_state", own.state, f"{state}; llama-memory-recurrent.cpp"),
    )
    return [
        Term(name=name, bytes=size, where=where, certainty="exact", formula=formula)
        for name, size, formula in sized
    ]


def _compute_terms(q: Question, arch: Architecture, sizes: Shape) -> list[Term]:
    """Compute buffers; with layers on both sides each side may need the whole graph's."""
    if len(_parts(q, arch)) == 1 and not q.options.overrides():
        side = CPU if _parts(q, arch)[0][1] == "host" else q.device
        return compute.target(arch, sizes, q.options, q.traits, side)
    sides = compute.target(arch, sizes, q.options, q.traits, q.device)
    sides += compute.target(arch, sizes, q.options, q.traits, CPU)
    return [replace(term, certainty="bounded") for term in sides]


def _draft_terms(q: Question, arch: Architecture, drafted: Architecture | None, sizes: Shape) -> list[Term]:
    if not q.options.uses_draft_context or (drafted is None and not (q.options.uses_mtp and arch.extra)):
        return []
    head = drafted or arch
    own_sizes = replace(sizes, outputs=sizes.slots, rollback=0)
    own = caches.draft(head, own_sizes, q.options, q.traits, mtp=q.options.uses_mtp)
    k, v = q.options.draft_cache_type_k, q.options.draft_cache_type_v
    known: Certainty = "exact" if head.mtp or not q.options.uses_mtp else "bounded"
    side = _side(q)
    what = "extra blocks" if head.mtp and q.options.uses_mtp else "all layers"
    formula = f"{sizes.context} cells x {what} ({k}/{v}), indexer included; speculative.cpp"
    total = own.kv + own.swa + own.indexer
    terms = [
        Term(name="draft_kv_cache", bytes=total, where=side, certainty=known, formula=formula),
        Term(
            name="draft_recurrent_state", bytes=own.state, where=side, certainty="exact",
            formula="state of the draft model, one row per slot",
        ),
    ]  # fmt: skip
    if q.draft is not None and drafted is not None:
        placed = weights.place(q.draft, drafted, Options(), q.traits, q.device, mtp=True)
        formula = "all tensors of the head or draft model"
        sides: list[tuple[Where, int]] = [("device", placed.device), ("host", placed.host + placed.table)]
        terms += [
            Term(name="draft_weights", bytes=size, where=where, certainty="exact", formula=formula)
            for where, size in sides
        ]
    return terms + compute.draft(head, own_sizes, q.options, q.traits, q.device)


def _server_terms(q: Question, arch: Architecture, sizes: Shape) -> list[Term]:
    """Output buffers, checkpoints, prompt cache and the process itself."""
    output, formula = compute.output(arch, sizes, q.options)
    terms = [Term(name="output", bytes=output, where="host", certainty="bounded", formula=formula)]
    one = caches.checkpoint(arch, sizes, q.options, q.traits)
    if one is not None:
        size = caches.checkpoints_bytes(one, sizes, q.options)
        each = f"({one.fixed} B + {one.per_token} B per token)"
        text = f"{sizes.slots} slots x {q.options.ctx_checkpoints} x {each}"
        terms.append(
            Term(
                name="checkpoints", bytes=size, where="host", certainty="bounded", formula=f"{text}; at most"
            )
        )
    terms += _prompt_cache(q, arch, sizes)
    return terms + _runtime(q, arch)


def _runtime(q: Question, arch: Architecture) -> list[Term]:
    """What the process and the driver take beside all buffers."""
    files = 1 if q.draft is None else 2
    process = PROCESS_BYTES + files * PROCESS_BYTES_PER_TOKEN * arch.vocabulary
    sized: list[tuple[int, Where, str]] = [
        (process, "host", "the process: libraries and the vocabulary"),
        (DRIVER_BYTES[q.device.backend], "device", "the driver, beyond all logged buffers"),
    ]
    return [
        Term(name="runtime", bytes=size, where=where, certainty="measured", formula=formula)
        for size, where, formula in sized
    ]


def _prompt_cache(q: Question, arch: Architecture, sizes: Shape) -> list[Term]:
    limit = q.options.cache_ram_mib
    if limit == 0:
        return []
    if limit > 0:
        return [
            Term(
                name="prompt_cache", bytes=limit * MIB, where="host", certainty="bounded",
                formula="--cache-ram, reached when enough different prompts have been seen",
            )
        ]  # fmt: skip
    own = caches.target(arch, sizes, q.options, q.traits)
    size = 2 * (own.kv + own.swa + own.indexer)
    return [
        Term(
            name="prompt_cache", bytes=size, where="host", certainty="measured",
            formula="--cache-ram -1 has no limit; twice the KV cache stands in",
        )
    ]  # fmt: skip


def _projected(terms: list[Term], projection: Sequence[Term]) -> list[Term]:
    """Put the engine's own figures in the place of computed ones; an exact term that agrees stays exact."""
    told = {name: sum(term.bytes for term in projection if term.name == name) for name in _names(projection)}
    agreed = {
        term.name for term in terms if term.certainty == "exact" and _agrees(term.bytes, told.get(term.name))
    }
    kept = [term for term in terms if term.name not in told or term.name in agreed]
    return [*kept, *(term for term in projection if term.name not in agreed)]


def disagreements(terms: Sequence[Term], projection: Sequence[Term]) -> list[str]:
    """Exact terms that the engine sizes otherwise: its figure is taken, and somebody should look why."""
    told = {name: sum(term.bytes for term in projection if term.name == name) for name in _names(projection)}
    return [
        f"{term.name}: planned {term.bytes / MIB:.2f} MiB, the engine says {told[term.name] / MIB:.2f}; "
        "its figure is taken, the engine's traits need a look"
        for term in terms
        if term.certainty == "exact" and term.name in told and not _agrees(term.bytes, told[term.name])
    ]


def _names(terms: Sequence[Term]) -> set[str]:
    return {term.name for term in terms}


def _agrees(planned: int, told: int | None) -> bool:
    return told is not None and abs(planned - told) <= LAST_DIGIT_BYTES
