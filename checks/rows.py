"""Rows are independent: what other sequences do in the same batch never changes an answer.

Every operation but attention works on each row alone, and attention's mask lets a row see cells of
its own sequence only (BATCHING.md). So the distribution of a prompt alone and beside strangers is the
same up to rounding, whatever the weights.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from checks.arrangement import Arrangement
from checks.check import Check
from checks.room import Claim, Room, agree, together

LENGTHS: Final = (9, 47, 170, 330)
"""Prompt lengths in tokens: below, near and above a ubatch of 64, so that prompts and single decoded
tokens share ubatches."""

TOKENS: Final = 16
UBATCH: Final = 64


def strangers(room: Room, arrangement: Arrangement, *, fixed: bool) -> str:
    """Ask in all slots at once, each prompt in each slot in turn, and compare with the prompt alone."""
    slots = arrangement.slots if fixed else room.slots(arrangement)
    probes = room.prompts.mixed(100, [LENGTHS[index % len(LENGTHS)] for index in range(max(slots, 4))])
    references = {probe: room.reference(probe, TOKENS) for probe in probes}
    client = room.server(arrangement) if fixed else room.any(arrangement)
    claims = []
    for turn in range(2 if room.quick else 4):
        asked = [probes[(slot + turn) % len(probes)] for slot in range(slots)]
        jobs = [
            partial(client.complete, probe, TOKENS, probs=20, id_slot=slot)
            for slot, probe in enumerate(asked)
        ]
        claims += [
            Claim(
                what=f"{len(probe)} tokens in slot {slot}, round {turn + 1}",
                reference=references[probe], got=got,
            )
            for slot, (probe, got) in enumerate(zip(asked, together(jobs), strict=True))
        ]  # fmt: skip
    return agree(claims, room.tolerance)


def _variant(slots: int, *, unified: bool, quick: bool) -> Check:
    kind = "unified" if unified else "split"
    arrangement = Arrangement(slots=slots, unified=unified, ubatch=UBATCH, batch=256)
    return Check(
        id=f"rows.{kind}-{slots}",
        starts=True,
        proves=f"{slots} slots with a {kind} KV cache answer as one slot alone does",
        rule=RULE,
        body=partial(strangers, arrangement=arrangement, fixed=True),
        upstream=UPSTREAM,
        quick=quick,
    )


RULE: Final = (
    "next-token distributions at 16 places equal those of the prompt alone; rounding is allowed for, because"
    " more rows in a pass change the order in which sums are taken"
)
UPSTREAM: Final = "llama.cpp #25992, #28537, #27579: rows of a shared batch corrupt one another"

CHECKS: Final = (
    Check(
        id="rows.strangers",
        proves="an answer does not depend on who asks at the same time",
        rule=RULE,
        body=partial(
            strangers, arrangement=Arrangement(slots=4, unified=True, ubatch=UBATCH, batch=256), fixed=False
        ),
        upstream=UPSTREAM,
    ),
    _variant(2, unified=True, quick=False),
    _variant(2, unified=False, quick=True),
    _variant(3, unified=True, quick=False),
    _variant(4, unified=False, quick=True),
    _variant(8, unified=True, quick=False),
    _variant(8, unified=False, quick=False),
)
