"""Prompts that any model can be given: ordinary words, cut to an exact number of tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

WORDS: Final = (
    "river", "house", "server", "memory", "green", "answer", "window", "question", "paper", "mountain",
    "number", "garden", "music", "letter", "winter", "stone", "engine", "silver", "market", "island",
    "the", "and", "with", "under", "after", "never", "always", "seven", "twelve", "before",
)  # fmt: skip
CODE_WORDS: Final = (
    "Falcon", "Walnut", "Cobalt", "Juniper", "Lantern", "Meadow", "Orchid", "Pepper", "Quartz", "Ribbon",
    "Saffron", "Thistle",
)  # fmt: skip


def sentences(seed: int, words: int) -> str:
    """Reproducible filler text of a number of words."""
    rng = random.Random(seed)  # noqa: S311 - filler, no secret
    made: list[str] = []
    while len(made) < words:
        length = rng.randint(5, 12)
        line = [rng.choice(WORDS) for _ in range(length)]
        made += [line[0].capitalize(), *line[1:-1], f"{line[-1]}."]
    return " ".join(made[:words])


class Prompts:
    """Token prompts of exact lengths, different ones for different seeds."""

    def __init__(self, tokenize: Callable[[str], list[int]]) -> None:
        self._tokenize = tokenize
        self._known: dict[int, list[int]] = {}

    def tokens(self, seed: int, length: int) -> tuple[int, ...]:
        """A prompt of exactly `length` tokens; those of one seed begin alike."""
        have = self._known.get(seed, [])
        words = max(32, length)
        while len(have) < length:
            have = self._tokenize(f"{seed} {sentences(seed, words)}")
            words *= 2
        self._known[seed] = have
        return tuple(have[:length])

    def mixed(self, seed: int, lengths: Sequence[int]) -> list[tuple[int, ...]]:
        """One prompt for each length, all with different beginnings."""
        return [self.tokens(seed + index, length) for index, length in enumerate(lengths)]
