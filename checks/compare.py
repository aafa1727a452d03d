"""Whether two answers are the same but for rounding. Pure: values in, a verdict out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from checks.client import Completion, Step


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How much rounding may move.

    Args:
        distance: largest allowed difference of two next-token distributions, see `distance`.
        margin: two tokens whose log-probabilities differ by less than this (in nats) may change
            places in a greedy text.
    """

    distance: float
    margin: float


def distance(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    """How far apart two next-token distributions are: half the sum of the differences of their
    probabilities, 0 for equal ones and 1 for ones without anything in common.

    Both are lists of the likeliest tokens with log-probabilities. A token that one list leaves out is
    at most as likely there as the least likely one listed, and is taken to be so where that is closer.
    """
    floors = [math.exp(min(top.values())) if top else 0.0 for top in (one, other)]
    total = 0.0
    for token in {*one, *other}:
        if token in one and token in other:
            total += abs(math.exp(one[token]) - math.exp(other[token]))
        else:
            here, floor = (one[token], floors[1]) if token in one else (other[token], floors[0])
            total += max(0.0, math.exp(here) - floor)
    return total / 2


def worst(reference: Sequence[Step], got: Sequence[Step]) -> float:
    """The largest distance of two greedy answers, up to and including the first place where they
    chose different tokens: after it they continue different texts."""
    found = 0.0
    for one, other in zip(reference, got, strict=False):
        found = max(found, distance(one.top, other.top))
        if one.token != other.token:
            break
    return found


@dataclass(frozen=True, kw_only=True)
class Split:
    """Where a text leaves its reference: the place, and by how many nats the reference preferred its
    own token; infinite where the other token was not among its likeliest."""

    place: int
    margin: float


def split(reference: Completion, tokens: Sequence[int]) -> Split | None:
    """The first place where a greedy text differs from a reference with log-probabilities.

    A text that ends early differs at its end.
    """
    for place, step in enumerate(reference.steps):
        given = tokens[place] if place < len(tokens) else None
        if given == step.token:
            continue
        other = step.top.get(given, -math.inf) if given is not None else -math.inf
        return Split(place=place, margin=step.top.get(step.token, 0.0) - other)
    return None


def longest_run(text: str) -> int:
    """Length of the longest run of one character other than white space."""
    best, run, last = 0, 0, ""
    for letter in text:
        run = run + 1 if letter == last else 1
        last = letter
        if not letter.isspace():
            best = max(best, run)
    return best
