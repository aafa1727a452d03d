"""`bench.mtp`: what drafting gains, by draft length, threshold and kind of text; heads at depth."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench import load, texts
from bench.results import Point
from bench.spread import difference, spread
from bench.sweep import Live, Outcome, Step, Subject
from errors import BadInput

N_MAX: Final = (1, 2, 3, 4, 6)
P_MIN: Final = (0.0, 0.5, 0.75)
QUICK_N_MAX: Final = (1, 3)
QUICK_P_MIN: Final = (0.0,)
KINDS: Final[tuple[texts.Kind, ...]] = ("code", "prose", "reasoning")
DEPTHS: Final = (0, 4096, 8192, 30000, 64000)


def steps(
    subject: Subject, *, quick: bool, heads: Mapping[str, Path] | None = None, synthetic: float | None = None
) -> list[Step]:
    """Off, then n-max x p-min, each on three kinds of text; then each head at several depths.

    Args:
        synthetic: chance that a drafted token is accepted when the one before it was (0 to 1): the engine
            then accepts by dice, so that a random model shows the curve of a real head.

    Raises:
        BadInput: the subject has no draft head.
    """
    preset = subject.changed({})
    if not preset.drafts:
        raise BadInput(
            f"{preset.name} drafts nothing",
            why="spec_type is empty and there is no head",
            hint="name a preset with a head, or --gguf MODEL --draft HEAD",
        )
    lengths, floors = (QUICK_N_MAX, QUICK_P_MIN) if quick else (N_MAX, P_MIN)
    found = [_step(0, 0.0, kind, {"spec_type": (), "head": None}) for kind in KINDS]
    for length in lengths:
        for floor in floors:
            changes: dict[str, Any] = {"draft_n_max": length, "draft_p_min": floor}
            if synthetic is not None:
                rates = ",".join(f"{synthetic ** (place + 1):.4f}" for place in range(length))
                changes["extra_args"] = (*preset.extra_args, "--spec-synth-rates", rates)
            found += [_step(length, floor, kind, changes, synthetic) for kind in KINDS]
    return found + [step for name, path in (heads or {}).items() for step in _depths(name, path, preset.ctx)]


def _step(
    length: int, floor: float, kind: texts.Kind, changes: dict[str, Any], synthetic: float | None = None
) -> Step:
    settings: dict[str, Any] = {"n_max": length, "p_min": floor, "kind": kind}
    if synthetic is not None:
        settings["synthetic"] = synthetic
    return Step(settings=settings, changes=changes, measure=partial(_measure, kind=kind))


def _depths(name: str, path: Path, ctx: int | None) -> list[Step]:
    return [
        Step(
            settings={"head": name, "depth": depth}, draft=path,
            measure=partial(_measure, kind="code", depth=depth),
        )
        for depth in DEPTHS
        if ctx is None or depth + 1024 < ctx
    ]  # fmt: skip


def _measure(live: Live, *, kind: texts.Kind, depth: int = 0) -> Outcome:
    tokens, repeats = (48, 2) if live.quick else (400, 3)
    words = live.words(depth, reserve=tokens + len(texts.PROMPTS[kind])) if depth else 0
    before = texts.filler(words, seed=depth) + "\n\n" if words else ""
    samples = []
    for turn in range(repeats):
        body = {
            "messages": [{"role": "user", "content": before + texts.PROMPTS[kind]}], "max_tokens": tokens,
            "temperature": 0, "seed": turn, "ignore_eos": True, "cache_prompt": False,
        }  # fmt: skip
        answer = live.fire([load.Ask(name=kind, body=body)]).answers[0]
        samples.append(
            {"turn": turn, "decode_tps": answer.decode_rate, "acceptance": answer.acceptance,
             "ttft_s": answer.ttft_s, "prompt_n": answer.prompt_tokens, "predicted_n": answer.tokens,
             "prompt_tps": answer.timings.get("prompt_per_second")}
        )  # fmt: skip
    return Outcome(measured=_middles(samples), samples=samples)


def _middles(samples: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    names = ("decode_tps", "acceptance", "ttft_s", "prompt_tps")
    found = {name: spread([float(s[name]) for s in samples if s[name] is not None]) for name in names}
    return {name: middle.median for name, middle in found.items() if middle is not None}


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The setting with the highest decode speed over all kinds of text.

    `gain` is its speed over that without drafting, `lead` over the next best setting, each with the ends of
    its 95 % interval; None where there are too few samples.
    """

    n_max: int
    p_min: float
    decode_tps: float
    gain: tuple[float, float, float] | None
    lead: tuple[float, float, float] | None

    def __str__(self) -> str:
        name = f"n-max {self.n_max}, p-min {self.p_min:g}" if self.n_max else "no drafting"
        parts = [f"{name}: {self.decode_tps:.1f} tokens/s"]
        if self.n_max and self.gain is not None:
            parts.append(_said(self.gain, "no drafting"))
        if self.lead is not None:
            parts.append(_said(self.lead, "the next best"))
        return "; ".join(parts)


def _said(ratio: tuple[float, float, float], other: str) -> str:
    value, low, high = ratio
    sure = "more than noise" if low > 1 else "not more than noise"
    return f"{value:.2f}x {other} (95 % {low:.2f} to {high:.2f}, {sure})"


def propose(points: Sequence[Point]) -> Proposal | None:
    """Pick the best setting of a sweep; None without a usable point."""
    rates = {key: values for key, values in _by_setting(points).items() if values}
    if not rates:
        return None
    order = sorted(rates, key=lambda key: statistics.median(rates[key]), reverse=True)
    best, off = order[0], (0, 0.0)
    return Proposal(
        n_max=best[0], p_min=best[1], decode_tps=statistics.median(rates[best]),
        gain=difference(rates[off], rates[best]) if off in rates and best != off else None,
        lead=difference(rates[order[1]], rates[best]) if len(order) > 1 else None,
    )  # fmt: skip


def _by_setting(points: Sequence[Point]) -> dict[tuple[int, float], list[float]]:
    """Setting -> mean decode speed over the kinds of text, one value per repetition."""
    found: dict[tuple[int, float], dict[int, list[float]]] = {}
    for point in points:
        if point.status == "ok" and "n_max" in point.settings:
            turns = found.setdefault((point.settings["n_max"], float(point.settings["p_min"])), {})
            for sample in point.samples:
                if sample.get("decode_tps") is not None:
                    turns.setdefault(sample["turn"], []).append(float(sample["decode_tps"]))
    return {
        key: [statistics.fmean(values) for values in turns.values() if len(values) == _most(turns)]
        for key, turns in found.items()
    }


def _most(turns: Mapping[int, Sequence[float]]) -> int:
    return max(len(values) for values in turns.values())
