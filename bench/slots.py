"""`bench.slots`: what several users at once get, each with a text of their own, with and without MTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench import load, texts
from bench.spread import spread
from bench.sweep import Live, Outcome, PointFailed, Step, Subject
from checks.compare import longest_run
from checks.slots import RUN
from presets.planner.options import pad
from presets.schema import Preset

BESIDE_TOKENS: Final = 512
"""Tokens of a slot beside filler and answer: the template, and the question around the code word."""
LEVELS: Final = (1, 2, 4, 8, 16)
QUICK_LEVELS: Final = (1, 2, 4)


@dataclass(frozen=True, kw_only=True)
class Load:
    """What each user asks: tokens of filler in the prompt, tokens generated, rounds.

    The sizes are those of SEED.md H5 and H6; a prompt that a slot cannot hold is cut to what it can.
    """

    name: str
    prompt: int
    tokens: int
    rounds: int


SHORT: Final = Load(name="short", prompt=64, tokens=256, rounds=3)
LONG: Final = Load(name="long", prompt=15000, tokens=1024, rounds=1)
QUICK_SHORT: Final = Load(name="short", prompt=32, tokens=32, rounds=2)
QUICK_LONG: Final = Load(name="long", prompt=512, tokens=32, rounds=1)


def steps(subject: Subject, *, quick: bool, levels: Sequence[int] | None = None) -> list[Step]:
    """Levels x loads on one server with as many slots as the highest level, with and without MTP."""
    loads = (QUICK_SHORT, QUICK_LONG) if quick else (SHORT, LONG)
    users = tuple(levels or (QUICK_LEVELS if quick else LEVELS))
    if not subject.starts:
        return [_step(level, one, None, {}) for one in loads for level in users]
    preset = subject.changed({})
    return [
        _step(level, one, kind, changes)
        for kind, changes in _servers(preset, max(users), loads)
        for one in loads
        for level in users
    ]


def _servers(preset: Preset, slots: int, loads: Sequence[Load]) -> list[tuple[str, dict[str, Any]]]:
    """The preset with that many slots; where it drafts, once without.

    A slot has the context that the loads need and no more than the preset gives it, as the seed measured
    eight users with 16k to 20k each: sixteen times the whole context of a preset would fit nowhere.
    """
    given = preset.ctx if preset.kv_unified else preset.ctx // preset.slots
    each = min(given, pad(max(one.prompt + one.tokens for one in loads) + BESIDE_TOKENS, 256))
    changes: dict[str, Any] = {"slots": slots, "ctx": each * slots}
    if not preset.drafts:
        return [("off", changes)]
    return [("off", {**changes, "spec_type": (), "head": None}), (",".join(preset.spec_type), changes)]


def _step(level: int, one: Load, kind: str | None, changes: dict[str, Any]) -> Step:
    settings: dict[str, Any] = {"users": level, "load": one.name, "prompt": one.prompt, "tokens": one.tokens}
    if kind is not None:
        settings |= {"speculation": kind, "slots": changes["slots"]}
    return Step(settings=settings, changes=changes, measure=lambda live: _measure(live, level, one))


def _measure(live: Live, level: int, one: Load) -> Outcome:
    if live.says.slots < level:
        raise PointFailed(f"the server has {live.says.slots} slots for {level} users", why="/props says so")
    words = live.words(one.prompt, reserve=one.tokens)
    samples = [sample for turn in range(one.rounds) for sample in _round(live, level, one, turn, words)]
    return Outcome(measured=summary(samples), samples=samples)


def _round(live: Live, level: int, one: Load, turn: int, length: int) -> list[dict[str, Any]]:
    asked = [texts.recall(user, length, salt=turn) for user in range(level)]
    words = [word for _, word in asked]
    asks = [
        load.Ask(
            name=f"user {user}",
            body={
                "messages": [{"role": "user", "content": prompt}], "max_tokens": one.tokens,
                "temperature": 0.7, "seed": 100 * turn + user, "ignore_eos": True, "cache_prompt": False,
            },
        )
        for user, (prompt, _) in enumerate(asked)
    ]  # fmt: skip
    done = live.fire(asks)
    return [
        {
            "round": turn, "user": user, "ttft_s": answer.ttft_s, "decode_tps": answer.decode_rate,
            "prompt_n": answer.prompt_tokens, "predicted_n": answer.tokens, "wall_s": answer.wall_s,
            "round_s": done.wall_s, "round_tokens": done.tokens, "acceptance": answer.acceptance,
            "generator_share": round(done.generator_share, 4),
            "class": classify(f"{answer.reasoning}\n{answer.text}", words[user], words),
        }
        for user, answer in enumerate(done.answers)
    ]  # fmt: skip


def summary(samples: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Totals of the rounds and middles of the users: tokens/s, seconds, shares."""
    rounds = {sample["round"]: sample for sample in samples}.values()
    middles = {
        "total_tps": [sample["round_tokens"] / sample["round_s"] for sample in rounds],
        "user_tps": [sample["decode_tps"] for sample in samples if sample["decode_tps"] is not None],
        "ttft_s": [sample["ttft_s"] for sample in samples if sample["ttft_s"] is not None],
        "acceptance": [sample["acceptance"] for sample in samples if sample["acceptance"] is not None],
    }
    found = {name: spread(values) for name, values in middles.items()}
    classes = [sample["class"] for sample in samples]
    return {
        **{name: middle.median for name, middle in found.items() if middle is not None},
        "clean_share": classes.count("ok") / len(classes),
        "mixed_up": float(classes.count("cross-talk")),
    }


def classify(text: str, own: str, words: Sequence[str]) -> str:
    """The seed's classes (SEED.md I): whose code word stands in the answer, thinking included.

    `cross-talk` another user's word, `empty` nothing, `repeats` a run of one character as the correctness
    suite counts it, `code word missing`, else `ok`.
    """
    lowered = text.lower()
    if any(word.lower() in lowered for word in words if word != own):
        return "cross-talk"
    if not text.strip():
        return "empty"
    if longest_run(text) >= RUN:
        return "repeats"
    return "ok" if own.lower() in lowered else "code word missing"
