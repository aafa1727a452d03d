"""How a server is started for a check: the options on which an answer must not depend."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

SLOT_CONTEXT: Final = 1024
"""Tokens of context per slot that the checks need."""


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """Server options that a check varies; names and units are llama.cpp's own.

    Args:
        slots: -np.
        context: -c, in tokens, for all slots together; None gives each slot `SLOT_CONTEXT`.
        batch, ubatch: -b and -ub, in tokens.
        unified: one KV cache for all slots (-kvu), or one for each.
        cache_type: -ctk and -ctv.
        checkpoints: -ctxcp, per slot.
        cache_ram: -cram, in MiB; 0 switches the prompt cache off.
        drafting: load the draft head and speculate.
        draft_max: drafted tokens per step.
        key: require an API key.
        extra: further arguments, as they are.
    """

    slots: int = 1
    context: int | None = None
    batch: int = 2048
    ubatch: int = 512
    unified: bool = False
    cache_type: str = "f16"
    checkpoints: int = 32
    cache_ram: int = 0
    drafting: bool = False
    draft_max: int = 3
    key: bool = False
    extra: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """The llama-server arguments, without model, address and key."""
        context = self.context or SLOT_CONTEXT * self.slots
        given = {
            "-np": self.slots, "-c": context, "-b": self.batch, "-ub": self.ubatch, "-ctk": self.cache_type,
            "-ctv": self.cache_type, "-ctxcp": self.checkpoints, "-cram": self.cache_ram,
        }  # fmt: skip
        words = [str(word) for pair in given.items() for word in pair]
        words.append("-kvu" if self.unified else "-no-kvu")
        if self.drafting:
            words += ["--spec-type", "draft-mtp", "--spec-draft-n-max", str(self.draft_max)]
        return [*words, *self.extra]

    def __str__(self) -> str:
        """What differs from the default, for people."""
        default = Arrangement()
        named = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(default, field.name)
        ]
        return ", ".join(named) or "one slot"
