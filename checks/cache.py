"""The cache does not matter: what a slot remembers makes an answer faster, never different."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from checks.arrangement import Arrangement
from checks.check import Check
from checks.client import Client, Completion
from checks.room import ONE_SLOT, PROBS, QUANTIZED, Claim, Room, Wrong, agree

TOKENS: Final = 12
HIT: Final = 0.95
"""Share of a follow-up prompt that must come from the cache where a checkpoint allows it; measured
99.5 % on the real model (SEED.md H7)."""

RULE: Final = "distributions at 12 places equal those of the whole prompt on an idle server, but for rounding"
DEEP: Final = Arrangement(context=2048)


def reused(room: Room) -> str:
    """The same prompts again and again on one slot, each from nothing, with others between them."""
    probes = room.prompts.mixed(300, (12, 60, 210))
    references = [room.reference(probe, TOKENS) for probe in probes]
    client = room.any(ONE_SLOT)
    claims = []
    for turn in range(2 if room.quick else 4):
        for index in (2, 0, 1):
            got = client.complete(probes[index], TOKENS, probs=PROBS, id_slot=0)
            what = f"{len(probes[index])} tokens, round {turn + 1}"
            claims.append(Claim(what=what, reference=references[index], got=got))
    return agree(claims, room.tolerance)


def continued(room: Room) -> str:
    """A conversation of three turns, each of which begins with all that came before."""
    history = room.prompts.tokens(310, 120)
    claims = []
    for turn in range(3):
        reference = room.reference(history, TOKENS)
        got = _continue(room.any(ONE_SLOT), history)
        claims.append(Claim(what=f"turn {turn + 1}, {len(history)} tokens", reference=reference, got=got))
        history = (*history, *reference.tokens, *room.prompts.tokens(311 + turn, 35))
    return agree(claims, room.tolerance)


def edited(room: Room) -> str:
    """Prompts that share a beginning with the one before and then differ."""
    first = room.prompts.tokens(320, 240)
    claims = []
    for kept in (200, 97, 5, 233):
        probe = (*first[:kept], *room.prompts.tokens(321 + kept, 40))
        reference = room.reference(probe, TOKENS)
        client = room.any(ONE_SLOT)
        _continue(client, first)
        got = _continue(client, probe)
        claims.append(Claim(what=f"{kept} tokens kept, then others", reference=reference, got=got))
    return agree(claims, room.tolerance)


def first_token(room: Room) -> str:
    """Three texts in one slot: a short one, a long one that begins otherwise, and an edit of the long one.

    b11434 keeps the checkpoint after the first token of the short text, and takes it for one of the
    long text when that is edited (patch L4).
    """
    short, long = room.prompts.tokens(200, 5), room.prompts.tokens(700, 100)
    probe = (*long[:50], *room.prompts.tokens(800, 30))
    reference = room.reference(probe, TOKENS)
    client = room.any(ONE_SLOT)
    _continue(client, short)
    _continue(client, long)
    got = _continue(client, probe)
    return agree([Claim(what="the edited text", reference=reference, got=got)], room.tolerance)


def restored(room: Room) -> str:
    """Two conversations that push one another out of the only slot, into the prompt cache and back."""
    arrangement = Arrangement(cache_ram=256)
    histories = [room.prompts.tokens(seed, 180) for seed in (330, 331)]
    turns: list[tuple[str, tuple[int, ...], Completion]] = []
    for turn in range(3):
        for index, history in enumerate(histories):
            reference = room.reference(history, TOKENS)
            turns.append((f"conversation {index + 1}, turn {turn + 1}", history, reference))
            histories[index] = (*history, *reference.tokens, *room.prompts.tokens(332 + turn, 25))
    client = room.server(arrangement)
    got = [_continue(client, history) for _, history, _ in turns]
    claims = [
        Claim(what=what, reference=reference, got=answer)
        for (what, _, reference), answer in zip(turns, got, strict=True)
    ]
    cached = sum(int(answer.timings.get("cache_n", 0)) for answer in got[2:])
    said = agree(claims, room.tolerance)
    if not cached:
        raise Wrong("nothing came back from the prompt cache (-cram)", expected="cache_n > 0", got="0")
    return f"{said}; {cached} tokens came back from the prompt cache"


def checkpoints(room: Room, count: int) -> str:
    """A long prompt, then the same one with another ending: how much of it comes from the cache."""
    arrangement = replace(DEEP, checkpoints=count)
    recurrent = room.recurrent
    first = room.prompts.tokens(340, 900)
    follow = (*first, *room.prompts.tokens(341, 30))
    reference = room.server(DEEP).complete(follow, TOKENS, probs=PROBS)
    client = room.server(arrangement)
    _continue(client, first)
    got = _continue(client, follow)
    said = agree([Claim(what=f"with {count} checkpoints", reference=reference, got=got)], room.tolerance)
    hits = got.timings["cache_n"] / (got.timings["cache_n"] + got.timings["prompt_n"])
    none_possible = count == 0 and recurrent
    if none_possible and hits > 0:
        raise Wrong("a recurrent state was cut back without a checkpoint", expected="0 %", got=f"{hits:.1%}")
    if not none_possible and hits < HIT:
        raise Wrong("the cache was hardly used", expected=f"≥ {HIT:.0%}", got=f"{hits:.1%}")
    return f"{said}; {hits:.1%} of the follow-up came from the cache"


def quantized(room: Room) -> str:
    """The same prompts with a q8_0 KV cache: near the f16 one, and near itself in other company."""
    probes = room.prompts.mixed(350, (9, 33, 60, 200))
    references = [room.reference(probe, TOKENS) for probe in probes]
    client = room.server(Arrangement(cache_type="q8_0", ubatch=64))
    claims = [
        Claim(
            what=f"{len(probe)} tokens in a q8_0 cache",
            reference=reference, got=client.complete(probe, TOKENS, probs=PROBS),
        )
        for probe, reference in zip(probes, references, strict=True)
    ]  # fmt: skip
    return agree(claims, QUANTIZED)


def pooled(room: Room) -> str:
    """A prompt longer than a slot's share: a unified cache takes it, a split one refuses, by name."""
    probe = room.prompts.tokens(360, 700)
    split_slots = Arrangement(slots=4, context=2048)
    refused = room.server(split_slots).post("/completion", {"prompt": list(probe), "n_predict": 1})
    if refused.status != 400 or refused.error.get("n_ctx") != 512:
        raise Wrong(
            "a split cache must refuse what exceeds a slot", expected="400, n_ctx 512", got=refused.message
        )
    reference = room.server(DEEP).complete(probe, TOKENS, probs=PROBS)
    unified = Arrangement(slots=4, context=2048, unified=True)
    got = room.server(unified).complete(probe, TOKENS, probs=PROBS)
    return agree([Claim(what="700 tokens in a pool of 2048", reference=reference, got=got)], room.tolerance)


def _continue(client: Client, prompt: tuple[int, ...]) -> Completion:
    return client.complete(prompt, TOKENS, probs=PROBS, cache_prompt=True, id_slot=0)


CHECKS: Final = (
    Check(
        id="cache.reused",
        proves="a slot that served others starts from nothing",
        rule=RULE,
        body=reused,
        upstream="llama.cpp #27296: a long prompt spoils the short one after it",
    ),
    Check(
        id="cache.continued",
        proves="a conversation continued from the cache is answered as one read from its start",
        rule=RULE,
        body=continued,
    ),
    Check(
        id="cache.edited",
        proves="a prompt whose end was edited is answered as a new one",
        rule=RULE,
        body=edited,
        upstream="llama.cpp #28019: state rolled back to the wrong place",
    ),
    Check(
        id="cache.first-token",
        proves="a checkpoint of one text is never taken for another text's",
        rule=RULE,
        body=first_token,
        upstream="found here in b11434: a checkpoint after one token outlives its text (patch L4)",
    ),
    Check(
        id="cache.restored",
        starts=True,
        proves="a conversation that came back from the prompt cache goes on as it would have",
        rule=RULE + "; and something did come back",
        body=restored,
    ),
    *(
        Check(
            id=f"cache.checkpoints-{count}",
            starts=True,
            proves=f"with {count} checkpoints the answer is right and the cache is used as far as it can be",
            rule=f"{RULE}; at least {HIT:.0%} of the follow-up from the cache, nothing without a checkpoint",
            body=partial(checkpoints, count=count),
            upstream="SEED.md H7: 99.5 % with one checkpoint, 0 % with none",
            quick=count == 1,
        )
        for count in (0, 1, 32)
    ),
    Check(
        id="cache.quantized",
        starts=True,
        proves="a q8_0 KV cache changes the distribution by its rounding and no more",
        rule="distributions within 0.15; measured 0.002 to 0.04 with random weights",
        body=quantized,
    ),
    Check(
        id="cache.pooled",
        starts=True,
        proves="a unified cache takes a prompt that a split one must refuse, and answers it rightly",
        rule=RULE + "; the refusal is a 400 that names the slot's context",
        body=pooled,
        quick=False,
    ),
)
