"""How many slots of which context fit, for every quant, and why that differs from what the seed published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from patches.traits import Traits
from presets import catalog
from presets.gguf import row_bytes
from presets.planner import calibrate, headers
from presets.planner.architecture import describe
from presets.planner.assess import Plan, Question, assess
from presets.planner.options import Options
from presets.planner.terms import GIB, MIB, Budget, Device

CAP: Final = 64
SIZES: Final = (16384, 32768, 65536, 131072, 262144)
MODEL: Final = calibrate.MODEL


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The most slots for one quant and context per slot; `published` is the seed's figure."""

    quant: str
    context: int
    mtp: bool
    slots: int
    headroom_bytes: int
    published: int | None = None
    why: str = ""


def cells(
    traits: Traits,
    device: Device,
    budget: Budget,
    *,
    quants: tuple[str, ...] = (),
    explain: bool = True,
) -> list[Cell]:
    """The whole table; `explain` names the term that the seed had otherwise wherever a cell differs."""
    table: Mapping[str, Any] = calibrate.published()["limits"]
    names = quants or tuple(table["cells"])
    found = []
    for name in names:
        for column, context in enumerate(SIZES):
            for mtp in (True, False):
                asked = question(name, context, mtp, traits, device, budget)
                theirs = table["cells"].get(name)
                told = theirs[column][0 if mtp else 1] if theirs else None
                found.append(_cell(asked, name, context, mtp, told, explain))
    return found


def question(quant: str, context: int, mtp: bool, traits: Traits, device: Device, budget: Budget) -> Question:
    """One slot of that context; `with_slots` asks for more."""
    assumed = calibrate.published()["limits"]["assumed"]
    header = headers.outline(MODEL, catalog.quant(MODEL, quant).bytes or 0)
    assert header is not None
    largest = headers.head_outline(MODEL, 0)
    options = Options(
        ctx=context, slots=1, kv_unified=False, batch=assumed["batch"], ubatch=assumed["ubatch"],
        cache_type_k="q8_0", cache_type_v="q8_0", spec_types=("draft-mtp",) if mtp else (),
        draft_n_max=assumed["n_max"], load_mode="none", lazy_mode="on", cache_ram_mib=assumed["cache_ram"],
        ctx_checkpoints=assumed["checkpoints"],
    )  # fmt: skip
    return Question(
        header=header, draft=largest if mtp else None, options=options, traits=traits, device=device,
        budget=budget, outlined=True,
    )  # fmt: skip


def with_slots(asked: Question, slots: int) -> Plan:
    """The plan for that many slots of the same context each."""
    return assess(replace(asked, options=replace(asked.options, slots=slots, ctx=asked.options.ctx * slots)))


def most_slots(asked: Question, cap: int = CAP) -> tuple[int, Plan]:
    """The most slots that fit, 0 for none, with the plan of that many (of one where none fits)."""
    low, high = 0, cap
    best = with_slots(asked, 1)
    while low < high:
        middle = (low + high + 1) // 2
        plan = with_slots(asked, middle)
        if plan.headroom_bytes >= 0:
            low, best = middle, plan
        else:
            high = middle - 1
    return low, best


def _cell(asked: Question, quant: str, context: int, mtp: bool, told: int | None, explain: bool) -> Cell:
    slots, plan = most_slots(asked)
    why = ""
    if explain and told is not None and told != slots:
        why = difference(asked, max(told, 1))
    return Cell(
        quant=quant, context=context, mtp=mtp, slots=slots, headroom_bytes=plan.headroom_bytes,
        published=told, why=why,
    )  # fmt: skip


def difference(asked: Question, slots: int) -> str:
    """Which share the older estimate had most wrong at that many slots."""
    ours, theirs = shares(asked, with_slots(asked, slots)), older(asked, slots)
    gaps = {name: ours[name] - theirs[name] for name in ours}
    name = max(gaps, key=lambda key: abs(gaps[key]))
    reason = REASONS[name] if gaps[name] > 0 else OPPOSITE.get(name, REASONS[name])
    return f"{name} {gaps[name] / GIB:+.1f} GiB: {reason}"


REASONS: Final = {
    "weights": "the table's resident pages and the token embeddings are counted apart",
    "KV and indexer": "this tree's indexer rows are of another width",
    "state": "kept 1 + n_max times, so that rejected drafts can be taken back",
    "compute": "it grows with the context per slot and was a constant",
    "draft": "its cache is f16, and its buffers grow with the context",
    "server": "output buffers, prompt cache limit and the process itself were left out",
}
OPPOSITE: Final = {
    "compute": "the constant was that of one run with 131072 cells",
    "server": "twice the KV cache was counted as prompt cache",
}
_SHARES: Final = {
    "weights": ("weights_device", "weights_host", "ngram_table"),
    "KV and indexer": ("kv_cache", "kv_cache_swa", "indexer_cache"),
    "state": ("recurrent_state",),
    "compute": ("compute_device", "compute_host"),
    "draft": ("draft_weights", "draft_kv_cache", "draft_recurrent_state", "draft_compute"),
    "server": ("output", "checkpoints", "prompt_cache", "runtime"),
}


def shares(asked: Question, plan: Plan) -> dict[str, int]:
    """A plan's terms in the groups of the older estimate."""
    return {name: sum(plan.bytes_of(term) for term in terms) for name, terms in _SHARES.items()}


def older(asked: Question, slots: int) -> dict[str, int]:
    """The seed's own formulas at that many slots (its memory page; 750 MiB a slot not yet added)."""
    arch = describe(asked.header)
    cells = asked.options.ctx * slots
    kv = cells * 13_056
    head = asked.draft.file_size if asked.draft else 0
    ubatch = asked.options.ubatch
    measured = asked.header.file_size > 100 * GIB  # its measurements held one run, of the largest quant
    compute = 4440 * MIB if measured else int((0.7 * ubatch + 256) * MIB)
    table = row_bytes("iq4_nl", 160) * 320_001_536 if arch.state_p else 0
    return {
        "weights": asked.header.file_size - table + int(2.6 * GIB),
        "KV and indexer": kv + cells * 4_896,
        "state": slots * int(115.59 * MIB),
        "compute": compute,
        "draft": head + cells * 1_088 + int((0.36 * ubatch + 102.4) * MIB) if head else 0,
        "server": min(asked.options.cache_ram_mib * MIB, 2 * kv),
    }


def rows(found: list[Cell]) -> Iterator[tuple[str, dict[int, tuple[Cell, Cell]]]]:
    """Cells by quant: context -> (with MTP, without)."""
    for quant in dict.fromkeys(cell.quant for cell in found):
        own = [cell for cell in found if cell.quant == quant]
        yield (
            quant,
            {
                context: tuple(  # type: ignore[misc]
                    next(cell for cell in own if cell.context == context and cell.mtp is mtp)
                    for mtp in (True, False)
                )
                for context in dict.fromkeys(cell.context for cell in own)
            },
        )


def text(found: list[Cell]) -> str:
    """The table for people: ours, and the seed's in brackets where it differs, with the reasons below."""
    contexts = list(dict.fromkeys(cell.context for cell in found))
    head = f"{'quant':<12}" + "".join(f"{context // 1024:>17}k" for context in contexts)
    lines = ["most slots by context per slot, with MTP / without; the seed's figures in brackets", head]
    for quant, by_context in rows(found):
        shown = (f"{_shown(*by_context[context]):>18}" for context in contexts)
        lines.append(f"{quant:<12}" + "".join(shown))
    reasons = [
        f"  {cell.quant} {cell.context // 1024}k {'with' if cell.mtp else 'without'} MTP: "
        f"{cell.slots} and not {cell.published}: {cell.why}"
        for cell in found
        if cell.why
    ]
    return "\n".join([*lines, *(["", "where they differ:", *reasons] if reasons else [])])


def _shown(mtp: Cell, bare: Cell) -> str:
    ours = f"{mtp.slots}/{bare.slots}"
    theirs = f"{mtp.published}/{bare.published}"
    return ours if ours == theirs or mtp.published is None else f"{ours} ({theirs})"


def csv(found: list[Cell]) -> str:
    """The table as CSV, one line a cell."""
    import csv as writer_of
    from io import StringIO

    out = StringIO()
    writer = writer_of.writer(out, lineterminator="\n")
    writer.writerow(["quant", "context_tokens", "mtp", "slots", "headroom_bytes", "published_slots", "why"])
    for cell in found:
        told = "" if cell.published is None else cell.published
        writer.writerow([cell.quant, cell.context, cell.mtp, cell.slots, cell.headroom_bytes, told, cell.why])
    return out.getvalue()
