"""What a check is: a name, what it proves and would have caught, its rule, and its body."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from checks.room import Room


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of the suite.

    Args:
        id: group and name, as in rows.strangers.
        proves: what a pass means.
        rule: when it passes, which noise is allowed, and why.
        body: makes the check; says what it saw, or raises Wrong or Unmet.
        upstream: the issues it would have caught.
        quick: whether it is part of the quick run.
        starts: whether it must start servers of its own, so that one that runs already is not enough.
    """

    id: str
    proves: str
    rule: str
    body: Callable[[Room], str]
    upstream: str = ""
    quick: bool = True
    starts: bool = False

    @property
    def group(self) -> str:
        """The part of the id before the dot."""
        return self.id.partition(".")[0]
