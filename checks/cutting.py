"""Cutting does not matter: into how many passes a prompt is cut never changes the answer."""

from __future__ import annotations

from functools import partial
from typing import Final

from checks.arrangement import Arrangement
from checks.check import Check
from checks.room import ONE_SLOT, PROBS, Claim, Room, agree

TOKENS: Final = 8
RULE: Final = (
    "distributions at 8 places equal those of the prompt in one pass; rounding is allowed for, because the"
    " width of a pass changes the order of sums"
)
UPSTREAM: Final = "llama.cpp #28211: wrong logits once a prompt exceeds n_ubatch; nix-amd-ai #124: -ub swings"


def lengths(ubatch: int) -> list[int]:
    """Prompt lengths around the edges of a ubatch, in tokens."""
    return [ubatch - 1, ubatch, ubatch + 1, 2 * ubatch, 4 * ubatch + 3]


def passes(room: Room, arrangement: Arrangement) -> str:
    """Prompts around the ubatch's edges on a server that cuts them, against one that does not."""
    width = min(arrangement.ubatch, arrangement.batch)
    probes = room.prompts.mixed(200 + width, [min(length, 480) for length in lengths(width)])
    references = [room.reference(probe, TOKENS) for probe in probes]
    client = room.server(arrangement)
    claims = [
        Claim(
            what=f"{len(probe)} tokens in passes of {width}",
            reference=reference, got=client.complete(probe, TOKENS, probs=PROBS),
        )
        for probe, reference in zip(probes, references, strict=True)
    ]  # fmt: skip
    return agree(claims, room.tolerance)


def pieces(room: Room) -> str:
    """Prompts given in two pieces, the second continuing the first from the cache."""
    claims = []
    for first, whole in ((20, 40), (33, 97), (64, 300), (299, 300)):
        probe = room.prompts.tokens(250 + first, whole)
        reference = room.reference(probe, TOKENS)
        client = room.any(ONE_SLOT)
        client.complete(probe[:first], 1, cache_prompt=True, id_slot=0)
        got = client.complete(probe, TOKENS, probs=PROBS, cache_prompt=True, id_slot=0)
        claims.append(Claim(what=f"{whole} tokens after the first {first}", reference=reference, got=got))
    return agree(claims, room.tolerance)


def _ubatch(width: int, *, quick: bool) -> Check:
    return Check(
        id=f"cut.ubatch-{width}",
        starts=True,
        proves=f"prompts around and above -ub {width} are answered as in one pass",
        rule=RULE,
        body=partial(passes, arrangement=Arrangement(ubatch=width)),
        upstream=UPSTREAM,
        quick=quick,
    )


CHECKS: Final = (
    Check(
        id="cut.pieces",
        proves="a prompt given in two pieces is answered as in one",
        rule=RULE,
        body=pieces,
        upstream=UPSTREAM,
    ),
    _ubatch(16, quick=False),
    _ubatch(64, quick=True),
    _ubatch(100, quick=True),
    _ubatch(128, quick=False),
    _ubatch(256, quick=False),
    Check(
        id="cut.batch",
        starts=True,
        proves="-b below -ub, which cuts prompts into several calls, does not change the answer",
        rule=RULE,
        body=partial(passes, arrangement=Arrangement(batch=48)),
        upstream=UPSTREAM,
    ),
)
