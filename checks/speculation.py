"""Speculation does not matter: drafts make a greedy text come sooner, never out different."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from checks.arrangement import Arrangement
from checks.check import Check
from checks.client import Completion
from checks.room import Claim, Room, Wrong, agree, together

ALONE: Final = Arrangement(drafting=True)
CROWD: Final = Arrangement(slots=4, unified=True, drafting=True, draft_max=5)
"""Four slots and a unified cache: what llama-server takes by itself where -np is left out. Longer drafts
than usual, so that more of them are taken back."""

LENGTHS: Final = (11, 30, 52, 23, 44, 17, 58, 36)
RULE: Final = (
    "greedy texts equal those without drafts; another token is allowed only where the reference itself was"
    " undecided, because verifying several rows in a pass changes the order of sums"
)
KEPT: Final = 0.5
"""An acceptance below half of that of a short prompt alone counts as collapsed."""

FEW: Final = 0.02
"""Where hardly any draft is kept in the first place, no share can be compared."""


def active(room: Room) -> str:
    """A server with a draft head starts, and really drafts."""
    room.must_draft()
    probe = room.prompts.tokens(400, 40)
    client = room.server(ALONE)
    answer = client.complete(probe, 64)
    if not answer.drafted:
        raise Wrong("nothing is drafted", expected="draft_n > 0", got="no draft_n in the timings")
    if not all(slot["speculative"] for slot in client.ask("/slots")):
        raise Wrong("/slots does not call every slot speculative")
    return f"{answer.accepted} of {answer.drafted} drafts kept ({_share([answer]):.0%})"


def same_text(room: Room, arrangement: Arrangement) -> str:
    """Texts of 96 tokens, one after the other, with and without drafts."""
    room.must_draft()
    probes = room.prompts.mixed(410, LENGTHS)
    references = [room.reference(probe, 96) for probe in probes]
    client = room.server(arrangement)
    got = [client.complete(probe, 96) for probe in probes]
    claims = [
        Claim(what=f"{len(probe)} tokens, with drafts", reference=reference, got=answer)
        for probe, reference, answer in zip(probes, references, got, strict=True)
    ]
    return f"{agree(claims, room.tolerance)}; {_share(got):.0%} of the drafts kept"


def crowded(room: Room, arrangement: Arrangement) -> str:
    """Many short texts, more than there are slots, so that slots come and go while others draft.

    A slot that is left out of a pass while its neighbours are in it has its state moved: on b11434
    the snapshots for taking drafts back stayed behind (the fault that patch L3 cures). It showed in
    12 to 16 of these 96 texts; in 0 to 2 of 48 longer ones with drafts of three.
    """
    room.must_draft()
    count, width = 96 if room.quick else 192, 24
    lengths = [LENGTHS[index % len(LENGTHS)] + index // len(LENGTHS) for index in range(count)]
    limits = [8 + 13 * index % 24 for index in range(count)]
    probes = room.prompts.mixed(420, lengths)
    references = [room.reference(probe, limit) for probe, limit in zip(probes, limits, strict=True)]
    client = room.server(arrangement)
    got: list[Completion] = []
    for start in range(0, count, width):
        part = range(start, start + width)
        got += together([partial(client.complete, probes[index], limits[index]) for index in part])
    claims = [
        Claim(what=f"text {index + 1} of {count}, slot {answer.slot}", reference=reference, got=answer)
        for index, (reference, answer) in enumerate(zip(references, got, strict=True))
    ]
    return f"{agree(claims, room.tolerance)}; {_share(got):.0%} of the drafts kept"


def repeated(room: Room) -> str:
    """Short requests, each after three different ones: what is drafted must be the same each time.

    What the head carries over weighs most where little follows it, hence the short prompts; and a
    threshold on its confidence turns small differences into other numbers of drafts.
    """
    room.must_draft()
    others = room.prompts.mixed(440, (40, 41, 42))
    texts = [room.prompts.tokens(100 * (index + 5), 3 + index % 4)[1:] for index in range(8)]
    client = room.server(replace(ALONE, extra=("--spec-draft-p-min", "0.6")))
    seen = 0
    for text in texts:
        counts = []
        for other in others:
            client.complete(other, 8)
            answer = client.complete(text, 24)
            counts.append((answer.drafted, answer.accepted))
        seen += counts[0][0]
        if len(set(counts)) > 1:
            raise Wrong(
                f"the same request of {len(text)} tokens is drafted differently after different requests",
                expected="the same numbers three times",
                got=", ".join(f"drafted {drafted}, kept {kept}" for drafted, kept in counts),
            )
    if not seen:
        raise Wrong("nothing is drafted", expected="draft_n > 0", got="0")
    return f"{len(texts)} requests are drafted the same three times, {seen} tokens in all"


def deep(room: Room) -> str:
    """Acceptance far into a prompt against that near its beginning."""
    room.must_draft()
    near, far = room.prompts.mixed(450, (20, 30, 40)), room.prompts.mixed(455, (1500, 1600, 1700))
    client = room.server(Arrangement(context=2048, drafting=True))
    return _compare(
        [client.complete(probe, 96) for probe in near],
        [client.complete(probe, 96) for probe in far],
        "1500 tokens deep",
    )


def busy(room: Room) -> str:
    """Acceptance with four slots at work against that of one alone."""
    room.must_draft()
    probes = room.prompts.mixed(460, (20, 30, 40, 50))
    client = room.server(CROWD)
    alone = [client.complete(probe, 96) for probe in probes]
    beside = together([partial(client.complete, probe, 96) for probe in probes])
    return _compare(alone, beside, "with four slots at work")


def _compare(short: Sequence[Completion], other: Sequence[Completion], what: str) -> str:
    usual, found = _share(short), _share(other)
    if usual < FEW:
        raise Wrong(f"only {usual:.1%} of the drafts are kept even in the easy case")
    if found < KEPT * usual:
        raise Wrong(f"acceptance collapses {what}", expected=f"≥ {KEPT * usual:.0%}", got=f"{found:.0%}")
    return f"{found:.0%} of the drafts kept {what}, {usual:.0%} without"


def _share(answers: Sequence[Completion]) -> float:
    """Kept drafts as a share of all; 0 where nothing was drafted."""
    drafted = sum(answer.drafted for answer in answers)
    return sum(answer.accepted for answer in answers) / drafted if drafted else 0.0


CHECKS: Final = (
    Check(
        id="spec.active",
        starts=True,
        proves="a server with a draft head starts and drafts",
        rule="it becomes healthy, every slot is speculative, and draft_n > 0",
        body=active,
        upstream="llama.cpp #29811: a dense head ends the server while it starts (patch L1)",
    ),
    Check(
        id="spec.same-text",
        starts=True,
        proves="one slot writes the same text with drafts as without",
        rule=RULE,
        body=partial(same_text, arrangement=ALONE),
        upstream="llama.cpp #28019",
    ),
    Check(
        id="spec.crowd",
        starts=True,
        proves="four slots of a unified cache write the same texts with drafts as one alone without",
        rule=RULE,
        body=partial(crowded, arrangement=CROWD),
        upstream="llama.cpp #28286: snapshots left behind when cells move (patch L3)",
    ),
    Check(
        id="spec.crowd-split",
        starts=True,
        proves="four slots with a split cache write the same texts with drafts as one alone without",
        rule=RULE,
        body=partial(crowded, arrangement=replace(CROWD, unified=False)),
        upstream="llama.cpp #28286: snapshots left behind when cells move (patch L3)",
        quick=False,
    ),
    Check(
        id="spec.repeated",
        starts=True,
        proves="what is drafted depends on the request, not on the one before it",
        rule="drafted and kept tokens of the same request are equal, to the token",
        body=repeated,
        upstream="llama.cpp #28333: draft state carried from the request before (patch L2)",
    ),
    Check(
        id="spec.deep",
        starts=True,
        proves="drafts stay useful deep in a prompt",
        rule="at least half the acceptance of a short prompt",
        body=deep,
        upstream="llama.cpp #23636: acceptance falls with the context",
        quick=False,
    ),
    Check(
        id="spec.busy",
        starts=True,
        proves="drafts stay useful when several slots draft at once",
        rule="at least half the acceptance of one slot alone",
        body=busy,
        upstream="llama.cpp #27572: acceptance 0 with several slots",
    ),
)
