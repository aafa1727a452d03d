"""What a plan warns of, and what would free memory: each advice is the plan asked again with one change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from presets.planner.architecture import Architecture, describe
from presets.planner.assess import Plan, Question, assess
from presets.planner.options import Options
from presets.planner.terms import MIB

SHOWN: Final = 6
QUANTISED: Final = ("q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
COARSE: Final = ("q4_0", "q4_1", "iq4_nl")


def warnings(q: Question, plan: Plan) -> tuple[str, ...]:
    """What works but is likely not meant, or will hurt."""
    arch = describe(q.header)
    return (*_unknown(q, arch), *_shape(q, plan, arch), *_speed(q, plan, arch), *_memory(q, plan, arch))


def _unknown(q: Question, arch: Architecture) -> Iterator[str]:
    if arch.why_unknown:
        yield f"{arch.why_unknown}: the terms are bounds, and nothing is promised"
    head = describe(q.draft) if q.draft else arch
    if q.options.uses_mtp and head.extra and not head.mtp:
        yield f"MTP on {head.name}: no layer filter is known, the draft may duplicate the whole KV cache"
    if q.options.uses_mtp and not head.extra:
        yield "draft-mtp needs an MTP head: give --draft, or a model file that holds one"
    if q.options.uses_draft_context and not q.options.uses_mtp and q.draft is None:
        yield f"{', '.join(q.options.spec_types)} needs a draft model: give --draft"
    if q.draft is None and not arch.trunk:
        yield "this file is an MTP head alone: given as the model, the engine crashes"
    if q.traits.guessed:
        yield f"guessed for this engine, not verified: {', '.join(q.traits.guessed)}"


def _shape(q: Question, plan: Plan, arch: Architecture) -> Iterator[str]:
    options, sizes = q.options, plan.shape
    if options.slots is None:
        yield f"slots left out: the engine takes {sizes.slots} slots on one pool of {plan.kv_cells} tokens"
    elif sizes.unified and sizes.slots > 1:
        yield f"a pool of {plan.kv_cells} tokens for {sizes.slots} slots: when it is full, all requests fail"
    if sizes.cells > arch.trained:
        yield (
            f"{sizes.cells} cells per sequence, {arch.trained} trained: memory is taken for all of them, "
            f"a slot is capped at {plan.per_slot_context}"
        )
    if options.uses_mtp and options.ctx == 0:
        yield "draft-mtp without ctx: some engines size the draft context by the trained length; set ctx"
    if options.ctx and plan.kv_cells != options.ctx:
        yield f"ctx {options.ctx} becomes {plan.kv_cells} cells (multiples of 256 per sequence)"


def _speed(q: Question, plan: Plan, arch: Architecture) -> Iterator[str]:
    options, sizes = q.options, plan.shape
    rows = sizes.slots * (1 + sizes.draft_tokens)
    if sizes.ubatch < rows:
        yield f"ubatch {sizes.ubatch} < slots x (1 + draft) = {rows}: one decode is split into several passes"
    if options.uses_mtp and sizes.slots > 1:
        yield "MTP with several busy slots lowers their sum of tokens per second"
    if options.ctx_checkpoints == 0 and arch.recurrent:
        yield "ctx_checkpoints 0 with a recurrent model: no prompt is ever reused from the cache"
    if options.cache_type_k in COARSE:
        yield f"cache_type_k {options.cache_type_k} ruins the output (KL divergence 5.5 measured with q4_0)"
    if options.cache_type_v in QUANTISED and options.flash_attn == "off":
        yield f"cache_type_v {options.cache_type_v} with flash_attn off: the engine refuses to start"
    if arch.mla and options.cache_type_k != options.cache_type_v:
        types = f"{options.cache_type_k} with {options.cache_type_v}"
        yield f"{arch.name} takes one type for K and V: the engine refuses {types}"


def _memory(q: Question, plan: Plan, arch: Architecture) -> Iterator[str]:
    options = q.options
    if options.cache_ram_mib == -1:
        yield "cache_ram -1: the prompt cache grows without a limit"
    elif options.cache_ram_mib == q.traits.cache_ram_mib and plan.verdict != "fits":
        yield f"cache_ram {options.cache_ram_mib} MiB is the engine's default; it fills up over days"
    limit = q.budget.container_bytes
    if limit is not None and plan.bytes_of("prompt_cache") * 2 > limit:
        cache = plan.bytes_of("prompt_cache") // MIB
        yield f"cache_ram {cache} MiB against a container limit of {limit // MIB} MiB: it will be killed"
    if plan.bytes_of("ngram_table") and not plan.lazy:
        table = plan.bytes_of("ngram_table") // MIB
        yield f"the n-gram table stays in RAM whole ({table} MiB); lazy_mode=on leaves it in the file"
    if q.budget.gtt_bytes is not None and plan.bytes_on("device") > q.budget.gtt_bytes:
        yield (
            f"{plan.bytes_on('device') // MIB} MiB on the device, {q.budget.gtt_bytes // MIB} MiB of GTT: "
            "raise amdgpu.gttsize and ttm.pages_limit (./inv doctor)"
        )


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing to change: the settings, how it reads, and how much it hurts (0 least)."""

    settings: dict[str, Any]
    text: str
    harm: int


def advise(q: Question, plan: Plan) -> tuple[str, ...]:
    """Changes that free memory, those that free most for least harm first; none when there is plenty."""
    if plan.verdict == "fits":
        return ()
    found = []
    for change in changes(q.options, plan):
        other = assess(replace(q, options=replace(q.options, **change.settings)))
        freed = plan.total_bytes - other.total_bytes
        if freed >= MIB:
            enough = other.headroom_bytes >= 0 and plan.headroom_bytes < 0
            found.append((freed / (1 + change.harm), freed, change.text, enough))
    found.sort(reverse=True)
    return tuple(
        f"{text} frees {freed // MIB} MiB{' and makes it fit' if enough else ''}"
        for _, freed, text, enough in found[:SHOWN]
    )


def changes(options: Options, plan: Plan) -> Iterator[Change]:
    """Everything that could be turned down, one step each."""
    sizes = plan.shape
    if plan.bytes_of("ngram_table") and not plan.lazy:
        yield Change(settings={"lazy_mode": "on"}, text="lazy_mode=on", harm=0)
    if options.cache_ram_mib not in (0, -1) and options.cache_ram_mib > 256:
        low = max(options.cache_ram_mib // 4, 256)
        yield Change(settings={"cache_ram_mib": low}, text=f"cache_ram={low}", harm=1)
    if options.ctx_checkpoints > 1 and plan.bytes_of("checkpoints"):
        low = max(options.ctx_checkpoints // 4, 1)
        yield Change(settings={"ctx_checkpoints": low}, text=f"ctx_checkpoints={low}", harm=1)
    if sizes.slots > 1:
        yield from _fewer_slots(options, plan)
    if options.cache_type_k in ("f16", "bf16", "f32"):
        yield Change(
            settings={"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, text="cache_type_k and _v=q8_0", harm=1
        )
    if sizes.ubatch >= 256:
        yield Change(settings={"ubatch": sizes.ubatch // 2}, text=f"ubatch={sizes.ubatch // 2}", harm=2)
    if options.uses_draft_context:
        if options.draft_n_max > 1 and sizes.rollback:
            low = options.draft_n_max - 1
            yield Change(settings={"draft_n_max": low}, text=f"draft_n_max={low}", harm=2)
        yield Change(settings={"spec_types": ()}, text="no draft (spec_type none)", harm=4)
    if sizes.context >= 8192:
        half = sizes.context // 2
        yield Change(settings={"ctx": half}, text=f"ctx={half}", harm=3)


def _fewer_slots(options: Options, plan: Plan) -> Iterator[Change]:
    """One slot, and half the slots; a split cache keeps its context per slot."""
    sizes = plan.shape
    for slots in dict.fromkeys((1, sizes.slots // 2)):
        settings: dict[str, Any] = {"slots": slots, "kv_unified": sizes.unified}
        settings["ctx"] = options.ctx or sizes.context
        yield Change(settings=settings, text=f"slots={slots}", harm=2)
