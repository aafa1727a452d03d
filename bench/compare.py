"""`bench.compare`: two images, presets or servers in turn (A B A B), and whether B is slower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import say
from bench import host, load, texts
from bench.results import Identity, Point, Store
from bench.spread import Ratio, ratio
from bench.sweep import Live, Subject, up
from bench.ubatch import vocabulary
from errors import BadInput, CheckFailed

ROUNDS: Final = 7
LEAST: Final = 3
METRICS: Final = {"prompt_tps": True, "decode_tps": True, "ttft_s": False}
"""Figure -> whether larger is better."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """B against A: a ratio above 1 always means that B is better, for times too."""

    a: Identity
    b: Identity
    ratios: Mapping[str, Ratio]

    @property
    def regressions(self) -> list[str]:
        return [name for name, found in self.ratios.items() if found.verdict == "regression"]

    def to_json(self) -> dict[str, Any]:
        return {
            "a": self.a.model_dump(),
            "b": self.b.model_dump(),
            "ratios": {
                name: {"ratio": found.value, "low": found.low, "high": found.high, "pairs": found.pairs,
                       "verdict": found.verdict}
                for name, found in self.ratios.items()
            },
            "regressions": self.regressions,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """One line per figure for people."""
        return [
            f"{name:<11} B is {found.value:.3f}x as good as A (95 % {found.low:.3f} to {found.high:.3f}, "
            f"{found.pairs} pairs): {found.verdict}"
            for name, found in self.ratios.items()
        ]


def compare(
    a: Subject, b: Subject, *, rounds: int = ROUNDS, quick: bool = False, store: Store | None = None
) -> Comparison:
    """Measure A and B in turn and store both.

    Each round starts A's server, measures, ends it, then B's: what drifts hits both alike. `rounds` are the
    pairs that count; one more is run first and thrown away, since the first start reads cold files.

    Raises:
        BadInput: fewer than three rounds.
        CheckFailed: one side could not be measured, so nothing can be said.
    """
    require_rounds(rounds)
    samples: dict[str, list[dict[str, Any]]] = {"A": [], "B": []}
    sides = {"A": a, "B": b}
    for turn in range(rounds + 1):
        for side, subject in sides.items():
            found, build = _side(side, subject, turn, quick)
            sides[side] = replace(subject, identity=subject.identity.model_copy(update={"build": build}))
            if turn:
                samples[side].append(found)
            say.step("compare", f"round {turn} of {rounds}, {side}: " + _shown(found))
    _keep(store or Store("compare"), sides, samples, quick)
    ratios = judge(samples["A"], samples["B"])
    return Comparison(a=sides["A"].identity, b=sides["B"].identity, ratios=ratios)


def require_rounds(rounds: int) -> None:
    """Refuse too few rounds, before anything is built or started for them."""
    if rounds < LEAST:
        raise BadInput(f"{rounds} rounds say nothing", why=f"an interval needs {LEAST}", hint="--rounds 5")


def judge(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> dict[str, Ratio]:
    """The ratio of every figure both sides have in every round."""
    found = {}
    for name, larger in METRICS.items():
        ours, theirs = [s.get(name) for s in a], [s.get(name) for s in b]
        if None in ours or None in theirs:
            continue
        first, second = (ours, theirs) if larger else (theirs, ours)
        between = ratio([float(v) for v in first if v], [float(v) for v in second if v])
        if between is not None:
            found[name] = between
    return found


def _side(side: str, subject: Subject, turn: int, quick: bool) -> tuple[dict[str, Any], str]:
    """One round of one side, and the build its server reports."""
    preset = subject.changed({}) if subject.starts else None
    try:
        with up(subject, preset, quick=quick) as (live, _):
            return {"round": turn, **_workload(live, turn)}, live.says.build
    except CheckFailed as error:
        raise CheckFailed(
            f"{side} ({subject.identity.subject}) could not be measured", why=f"{error.what}: {error.why}"
        ) from error


def _workload(live: Live, turn: int) -> dict[str, float | None]:
    """One request to warm up, then one whose prompt is new; rates in tokens/s."""
    prompt, decode = (256, 32) if live.quick else (2048, 256)
    prompt = min(prompt, live.says.slot_context - decode - 8)
    size = vocabulary(live)
    for seed, count in ((1, 32), (5000 + turn, prompt)):
        body = {
            "prompt": texts.tokens(count, seed=seed, vocabulary=size), "n_predict": decode,
            "ignore_eos": True, "cache_prompt": False, "temperature": 0,
        }  # fmt: skip
        answer = live.fire([load.Ask(name="compare", body=body, chat=False)]).answers[0]
    return {
        "prompt_tps": answer.timings.get("prompt_per_second"),
        "decode_tps": answer.decode_rate,
        "ttft_s": answer.ttft_s,
    }


def _keep(
    store: Store, subjects: Mapping[str, Subject], samples: Mapping[str, list[dict[str, Any]]], quick: bool
) -> None:
    facts = host.facts()
    for side, subject in subjects.items():
        other = subjects["B" if side == "A" else "A"].identity
        settings = {"side": side, "against": other.subject, "against_digest": other.digest}
        store.append(
            Point(sweep="compare", settings=settings, identity=subject.identity, host=facts, quick=quick,
                  samples=samples[side])
        )  # fmt: skip


def _shown(sample: Mapping[str, Any]) -> str:
    parts = []
    for name in METRICS:
        if sample.get(name) is not None:
            unit = "tokens/s" if name.endswith("tps") else "s"
            parts.append(f"{name.split('_')[0]} {sample[name]:.4g} {unit}")
    return ", ".join(parts)
