"""How models are shown and asked for on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence

import say
from errors import BadInput
from presets.download import Options
from presets.models import Row, Verdict


def text(rows: Sequence[Row]) -> str:
    """The catalog as a table, one line per quant or head."""
    lines = [
        f"{'model':<22} {'':<5} {'name':<22} {'size':>10}  {'KLD':>6} {'top-1':>6}  {'here':<22} licence"
    ]
    for row in rows:
        size = say.size(row.bytes) if row.bytes else "see lock"
        quality = f"{row.kld or '':>6} {f'{row.top1_percent} %' if row.top1_percent else '':>6}"
        lines.append(
            f"{row.model:<22} {row.kind:<5} {row.name:<22} {size:>10}  {quality}  {_here(row):<22} "
            f"{row.licence}{f' · {row.family}' if row.family else ''}"
        )
    return "\n".join(lines)


def _here(row: Row) -> str:
    if row.damaged:
        return f"{row.damaged} of {row.shards} unverified"
    if row.here == row.shards:
        return "whole"
    return f"{row.here} of {row.shards}" if row.here else "-"


def verdict_line(verdict: Verdict) -> str:
    """One verified file in a line, with the speed it was read at."""
    speed = say.size(int(verdict.bytes / verdict.seconds)) if verdict.seconds else "?"
    state = f"DAMAGED: {verdict.fault}" if verdict.fault else "right"
    return f"{verdict.path.name}: {state} ({say.size(verdict.bytes)} at {speed}/s)"


def options(limit: str, files: int, ranges: int) -> Options:
    """How to fetch, from words of the command line.

    Raises:
        BadInput: a number that cannot be meant.
    """
    for name, number, most in (("files", files, 32), ("ranges", ranges, 16)):
        if not 1 <= number <= most:
            raise BadInput(f"cannot use --{name} {number}", why=f"it wants 1 to {most}")
    return Options(files=files, ranges=ranges, rate=rate(limit))


def rate(words: str) -> int | None:
    """A cap such as `20M` in bytes per second; None for no cap.

    >>> rate("20M"), rate("")
    (20971520, None)

    Raises:
        BadInput: it is not a number with an optional K, M or G, or below 64 KiB.
    """
    if not words:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)", words.strip(), re.IGNORECASE)
    size = int(float(found[1]) * 1024 ** " KMG".index(found[2].upper() or " ")) if found else 0
    if size < 65536:
        raise BadInput(
            f"cannot use --limit {words}", why="it wants bytes per second, 64K or more", hint="--limit 20M"
        )
    return size
