"""Points as a table for the terminal: medians with their spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bench.results import Point
from bench.spread import spread
from bench.sweep import named, shown
from bench.words import label, number

WIDTH: Final = 118
COLUMNS: Final = {
    "ubatch": ("prompt_tps", "decode_tps", "ttft_s"),
    "slots": ("decode_tps", "ttft_s", "acceptance"),
    "cache": ("hit_share", "turn_s", "cold_s"),
    "mtp": ("decode_tps", "acceptance", "ttft_s"),
    "load": ("healthy_s", "first_token_s", "teardown_s"),
}
"""Sweep -> what is shown: fields of its samples, or figures that the sweep summed up itself."""


def table(sweep: str, points: Sequence[Point]) -> str:
    """One row per point: median and, where there are several samples, the quartiles; or why it failed.

    Settings that all points share stand in the title.
    """
    from rich.console import Console
    from rich.table import Table

    varying, shared = _settings(points)
    title = f"bench.{sweep}: median (quartiles)" + (f"; {named(shared)}" if shared else "")
    made = Table(title=title, title_justify="left")
    for name in varying:
        made.add_column(name.replace("_", " "))
    for heading in (*(label(name) for name in COLUMNS[sweep]), "compute, MiB", "planned, MiB"):
        made.add_column(heading, justify="right")
    failures = []
    for point in points:
        settings = [shown(point.settings[name]) if name in point.settings else "" for name in varying]
        if point.status == "failed":
            made.add_row(*settings, "failed")
            failures.append(f"failed: {named(point.settings)}: {point.reason}")
        else:
            cells = [_cell(point, name) for name in COLUMNS[sweep]]
            made.add_row(*settings, *cells, _compute(point.measured), _compute(point.predicted))
    console = Console(width=WIDTH)
    with console.capture() as captured:
        console.print(made)
    return "\n".join([captured.get().rstrip(), *failures])


def _settings(points: Sequence[Point]) -> tuple[list[str], dict[str, Any]]:
    """Names of the settings in which points differ, and the settings all share."""
    names = list(dict.fromkeys(name for point in points for name in point.settings))
    values = {name: {shown(point.settings.get(name, "")) for point in points} for name in names}
    varying = [name for name in names if len(values[name]) > 1]
    shared = {name: points[0].settings[name] for name in names if name not in varying} if points else {}
    return (varying, shared) if varying else (names, {})


def _cell(point: Point, name: str) -> str:
    source = {"source": "server"} if any("source" in sample for sample in point.samples) else {}
    found = spread(point.values(name, **source))
    if found is None:
        return number(point.measured[name]) if name in point.measured else "-"
    if found.count == 1:
        return number(found.median)
    return f"{number(found.median)} ({number(found.low)} to {number(found.high)})"


def _compute(values: dict[str, float]) -> str:
    names = ("compute_device_bytes", "compute_host_bytes")
    found = [values[name] for name in names if name in values]
    return f"{sum(found) / 2**20:.2f}" if found else "-"
