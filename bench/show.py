"""Points as a table for the terminal: medians with their spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.results import Point
from bench.spread import spread
from bench.sweep import named
from bench.words import label, number

COLUMNS: Final = {
    "ubatch": ("prompt_tps", "decode_tps", "ttft_s"),
    "slots": ("decode_tps", "ttft_s", "acceptance"),
    "cache": ("hit", "ttft_s", "wall_s"),
    "mtp": ("decode_tps", "acceptance", "ttft_s"),
    "load": ("healthy_s", "first_token_s", "teardown_s"),
}
"""Sweep -> what its samples are summed up by."""


def table(sweep: str, points: Sequence[Point]) -> str:
    """One row per point: median and, where there are several samples, the quartiles; or why it failed."""
    from rich.console import Console
    from rich.table import Table

    made = Table(title=f"bench.{sweep}: median (quartiles)", title_justify="left")
    made.add_column("point", overflow="fold")
    for name in COLUMNS[sweep]:
        made.add_column(label(name), justify="right")
    made.add_column("compute, MiB", justify="right")
    made.add_column("planned, MiB", justify="right")
    for point in points:
        if point.status == "failed":
            made.add_row(named(point.settings), f"failed: {point.reason}")
        else:
            cells = [_cell(point, name) for name in COLUMNS[sweep]]
            made.add_row(named(point.settings), *cells, _compute(point.measured), _compute(point.predicted))
    console = Console(width=110)
    with console.capture() as captured:
        console.print(made)
    return captured.get().rstrip()


def _cell(point: Point, name: str) -> str:
    source = {"source": "server"} if any("source" in sample for sample in point.samples) else {}
    found = spread(point.values(name, **source))
    if found is None:
        return "-"
    if found.count == 1:
        return number(found.median)
    return f"{number(found.median)} ({number(found.low)} to {number(found.high)})"


def _compute(values: dict[str, float]) -> str:
    names = ("compute_device_bytes", "compute_host_bytes")
    found = [values[name] for name in names if name in values]
    return f"{sum(found) / 2**20:.2f}" if found else "-"
