"""What the user sees: one line per step, on standard error, so that standard output stays a document."""

from __future__ import annotations

import json
import sys
from typing import Any


def step(name: str, text: str) -> None:
    """Say what a step did, or why it did nothing."""
    print(f"{name:>8}  {text}", file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Say something the user must not miss; the work goes on."""
    print(f" warning  {text}", file=sys.stderr, flush=True)


def document(value: Any) -> None:
    """Print one JSON document on standard output."""
    print(json.dumps(value, indent=2, sort_keys=False, ensure_ascii=False), flush=True)


def size(number: int) -> str:
    """A byte count for people: MiB = 2^20 and GiB = 2^30 bytes.

    >>> size(98362432)
    '93.8 MiB'
    """
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")
