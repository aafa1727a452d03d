"""The list of images for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import say
from images.records import ImageRecord


def table(records: Sequence[ImageRecord], now: datetime | None = None) -> str:
    """One line per image: reference, engine pin, series, flavour and processor, size, age."""
    if not records:
        return "no images yet; ./inv build makes one"
    moment = now or datetime.now(UTC)
    rows = [("IMAGE", "PIN", "SERIES", "FLAVOUR", "SIZE", "AGE")]
    rows += [
        (
            record.ref,
            record.pin,
            f"{record.series_digest[:12]} ({len(record.patches)})",
            f"{record.flavour} {record.cpu}",
            say.size(record.size),
            age((moment - record.created).total_seconds()),
        )
        for record in records
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def age(seconds: float) -> str:
    """A span in its largest whole unit.

    >>> age(7300)
    '2 h'
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"
