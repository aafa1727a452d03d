"""Prompts of any length, one's own for each user: deterministic, so that two runs ask the same."""

from __future__ import annotations

import random
from typing import Final, Literal

Kind = Literal["code", "prose", "reasoning"]

PROMPTS: Final[dict[Kind, str]] = {
    "code": "Write a Python class for a ring buffer with push, pop, iteration and a length limit, "
    "then unit tests for each method.",
    "prose": "Describe a harbour town on a winter morning: the light, the boats, the people on their way "
    "to work, and what the baker tells his first customer.",
    "reasoning": "Three pumps fill a tank. A alone needs 6 hours, B 8 hours, C 12 hours. A starts at seven, "
    "B joins at eight, C at nine. When is the tank full? Work step by step and check the result.",
}

CODEWORDS: Final = (
    "Basalt", "Thistle", "Copper", "Lantern", "Meadow", "Granite", "Juniper", "Saffron",
    "Walnut", "Harbor", "Crystal", "Falcon", "Velvet", "Orchid", "Timber", "Cobble",
)  # fmt: skip
"""One word a user must give back; no word is part of another or of the filler below."""

_NOUNS: Final = (
    "river", "engine", "letter", "window", "garden", "bridge", "market", "engineer", "signal", "mirror",
    "carpet", "kitchen", "pattern", "station", "village", "teacher", "wagon", "island", "theatre", "forest",
)  # fmt: skip
_VERBS: Final = ("follows", "repairs", "paints", "measures", "carries", "finds", "describes", "turns")
_PLACES: Final = ("behind the mill", "near the coast", "after the rain", "in the old hall", "below the hill")


def filler(words: int, seed: int) -> str:
    """About `words` words of harmless text; another seed gives another text from the first word on."""
    dice = random.Random(seed)  # noqa: S311 - varied text, not a secret
    parts: list[str] = []
    count = 0
    while count < words:
        sentence = (
            f"The {dice.choice(_NOUNS)} {dice.choice(_VERBS)} the {dice.choice(_NOUNS)} "
            f"{dice.choice(_PLACES)}, and number {dice.randrange(1000)} stays with the {dice.choice(_NOUNS)}."
        )
        parts.append(sentence)
        count += len(sentence.split())
    return " ".join(parts)


SAMPLE_WORDS: Final = 200
"""Words of filler that are tokenised once to learn how many tokens a word takes."""


def words_for(tokens: int, per_word: float, *, room: int) -> int:
    """Words of filler for a number of tokens, at most what `room` tokens hold (5 % spared).

    Args:
        per_word: tokens that a word of filler takes with this model's tokenizer.
    """
    return max(0, int(min(tokens, room * 0.95) / per_word))


def recall(user: int, words: int, *, salt: int = 0) -> tuple[str, str]:
    """A prompt that names the user's own code word and asks for it, and the word."""
    word = CODEWORDS[user % len(CODEWORDS)]
    text = filler(words, seed=1000 * (user + 1) + salt) if words else ""
    prompt = f"The code word is {word}. Remember it. {text}".strip()
    return f"{prompt}\n\nStart your answer with the code word, then tell a short story about it.", word


def tokens(count: int, seed: int, *, vocabulary: int, first: int = 100) -> list[int]:
    """Random token ids for exact prompt lengths; they stay clear of the special ones at both ends."""
    dice = random.Random(seed)  # noqa: S311 - varied tokens, not a secret
    last = max(first + 1, vocabulary - 64)
    low = min(first, last - 1)
    return [dice.randrange(low, last) for _ in range(count)]
