"""`bench.cache`: how much of a conversation is taken from the cache, and what a turn costs.

A hit rate is cache_n / (cache_n + prompt_n) of the server's own timings, over the turns after the first.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench import load, texts
from bench.spread import spread
from bench.sweep import Live, Outcome, Step, Subject
from presets.planner.options import pad
from presets.schema import Preset

CHECKPOINTS: Final = (0, 1, 4, 32)
TURN_TOKENS: Final = 64
"""Tokens that a further question takes with its template, at most."""


@dataclass(frozen=True, kw_only=True)
class Talk:
    """Some conversations that take turns on one server.

    Args:
        prompt: tokens of the document each conversation starts with; cut to what a slot can hold.
        sessions: conversations, served one after the other within a turn.
        diverging: the second turn changes the end of the document, as an edited history does.
        shortened: answers come back without their end, as from clients that strip thinking or white space;
            a recurrent state cannot go back those few tokens without a checkpoint.
    """

    name: str
    prompt: int
    turns: int = 3
    sessions: int = 1
    diverging: bool = False
    shortened: bool = False
    answer: int = 48


def talks(quick: bool) -> tuple[Talk, ...]:
    """The conversations of one checkpoint count."""
    length = 800 if quick else 7000
    return (
        Talk(name="one session", prompt=length),
        Talk(name="shortened answers", prompt=length, shortened=True),
        Talk(name="edited history", prompt=length, turns=4, diverging=True),
    )


def steps(subject: Subject, *, quick: bool, checkpoints: Sequence[int] | None = None) -> list[Step]:
    """Checkpoints 0/1/4/32; then more sessions on as many slots, on fewer slots, and a deep prompt."""
    if not subject.starts:
        return [_step({}, talk, {}) for talk in talks(quick)]
    counts = checkpoints or ((0, 1, 32) if quick else CHECKPOINTS)
    found = [
        _step({"checkpoints": count}, talk, {"ctx_checkpoints": count})
        for count in counts
        for talk in talks(quick)
    ]
    return found + _crowds(subject.changed({}), quick)


def _crowds(preset: Preset, quick: bool) -> list[Step]:
    length = 400 if quick else 7000
    slots, many = (2, 3) if quick else (8, 12)
    given = preset.ctx if preset.kv_unified else preset.ctx // preset.slots
    each = min(given, pad(length + 2 * (Talk.answer + TURN_TOKENS) + 512, 256))
    changes = {"slots": slots, "ctx": each * slots}
    crowds = [
        Talk(name=f"{count} sessions", prompt=length, sessions=count, turns=2) for count in (slots, many)
    ]
    found = [_step({"slots": slots}, talk, changes) for talk in crowds]
    deep = Talk(name="deep prompt", prompt=2000 if quick else 53000, turns=2)
    return [*found, _step({"slots": preset.slots}, deep, {})]


def _step(settings: dict[str, Any], talk: Talk, changes: dict[str, Any]) -> Step:
    named = {**settings, "talk": talk.name, "prompt": talk.prompt, "sessions": talk.sessions}
    return Step(settings=named, changes=changes, measure=lambda live: _measure(live, talk))


def _measure(live: Live, talk: Talk) -> Outcome:
    # Talks share a server: each has texts of its own, or one would find the cache of another.
    words = live.words(talk.prompt, reserve=talk.turns * (talk.answer + TURN_TOKENS))
    first = zlib.crc32(talk.name.encode()) % 100_000 * 100
    histories = [
        [{"role": "user", "content": texts.filler(words, seed=first + number) + "\n\nSum this up."}]
        for number in range(talk.sessions)
    ]
    samples = [
        _turn(live, talk, turn, number, history)
        for turn in range(talk.turns)
        for number, history in enumerate(histories)
    ]
    measured = summary(samples)
    if not talk.diverging:
        measured.pop("edited_hit_share", None)
    return Outcome(measured=measured, samples=samples)


def _turn(live: Live, talk: Talk, turn: int, number: int, history: list[dict[str, str]]) -> dict[str, Any]:
    """One turn of one conversation; the history grows by the answer and the next question."""
    if talk.diverging and turn == 1:
        kept = history[0]["content"].split(" ")
        history[0]["content"] = " ".join(kept[: len(kept) * 2 // 3]) + "\n\nSum this up."
    body = {"messages": history, "max_tokens": talk.answer, "temperature": 0, "ignore_eos": True}
    answer = live.fire([load.Ask(name=f"session {number}", body=body)]).answers[0]
    history += [
        {"role": "assistant", "content": answer.text[:-8] if talk.shortened else answer.text},
        {"role": "user", "content": f"And what follows from point {turn + 1}?"},
    ]
    cached, read = answer.timings.get("cache_n", 0), answer.timings.get("prompt_n", 0)
    return {
        "turn": turn + 1, "session": number, "cache_n": cached, "prompt_n": read, "ttft_s": answer.ttft_s,
        "wall_s": answer.wall_s, "prompt_tps": answer.timings.get("prompt_per_second"),
        "hit": cached / (cached + read) if cached + read else None,
    }  # fmt: skip


def summary(samples: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Middles of the first turn (cold) and of those after it, in seconds and as a share."""
    first = [sample for sample in samples if sample["turn"] == 1]
    later = [sample for sample in samples if sample["turn"] > 1]
    wanted = {
        "cold_s": [sample["ttft_s"] for sample in first if sample["ttft_s"] is not None],
        "turn_s": [sample["ttft_s"] for sample in later if sample["ttft_s"] is not None],
        "hit_share": [sample["hit"] for sample in later if sample["hit"] is not None],
        "edited_hit_share": [sample["hit"] for sample in later if sample["turn"] == 2],
    }
    found = {name: spread(values) for name, values in wanted.items()}
    return {name: middle.median for name, middle in found.items() if middle is not None}
