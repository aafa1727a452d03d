"""Draws the plots of the report with matplotlib (extra `report`): SVG that follows the page's theme, PNG.

Inside the page colours are CSS variables, so one picture serves light and dark. Text stays text: it can be
read aloud, searched and scaled.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from bench.sections import Cell, Table
from bench.words import label, number, short_label
from errors import HostLacks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INSTALL: Final = "./inv bench.report brings it; without ./inv: python -m pip install 'matplotlib>=3.9'"
WIDTH: Final = 4.95
"""Inches at 72 dots: 356 px, what a phone and a column of the page show, so that type keeps its size."""
ROW: Final = 0.25
"""Inches one horizontal bar takes."""


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colours of a picture, as matplotlib takes them."""

    ink: str
    soft: str
    grid: str
    back: str
    series: tuple[str, ...]


LIGHT: Final = Theme(
    ink="#1d2430", soft="#5a6472", grid="#d9dee5", back="#ffffff",
    series=("#1f6feb", "#d9480f", "#2b8a3e", "#9c36b5", "#b08800", "#0b7285", "#c2255c", "#495057"),
)  # fmt: skip
_MARKS: Final = Theme(
    ink="#010101", soft="#010102", grid="#010103", back="#010104",
    series=tuple(f"#0102{place:02x}" for place in range(1, 9)),
)  # fmt: skip
"""Colours that stand for CSS variables until the picture is done."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: Final = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 1.5, 1.5, 1.5)))
"""A series is told by its marker and dashes too, not by colour alone."""
HEAT_LOW: Final = (237, 244, 252)
HEAT_HIGH: Final = (16, 76, 161)


def available() -> bool:
    """Whether matplotlib can be imported."""
    import importlib.util

    return importlib.util.find_spec("matplotlib") is not None


def require() -> None:
    """Raise HostLacks, with what to type, when matplotlib is missing."""
    if not available():
        raise HostLacks("matplotlib is not installed", why="plots need it (extra `report`)", hint=INSTALL)


def drawable(table: Table) -> bool:
    """Whether there is anything to draw."""
    if table.plot.kind == "none":
        return False
    return any(isinstance(cell, int | float) for name in table.plot.y for cell in table.column(name))


def inline(table: Table) -> str:
    """The picture as an SVG element whose colours are the page's CSS variables."""
    with _styled(_MARKS, salt=table.id):
        figure = _draw(table, _MARKS)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata=_METADATA)
    return _themed(stream.getvalue(), table)


def export(table: Table) -> dict[str, bytes]:
    """The picture as files of its own in the light theme, by ending: svg and png."""
    with _styled(LIGHT, salt=table.id):
        figure = _draw(table, LIGHT)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        files = {}
        for kind in ("svg", "png"):
            stream = io.BytesIO()
            figure.savefig(stream, format=kind, dpi=160, metadata=_METADATA if kind == "svg" else None)
            files[kind] = stream.getvalue()
    return files


_METADATA: Final[dict[str, Any]] = {"Date": None, "Creator": None, "Type": None, "Format": None}


def describe(table: Table) -> str:
    """What a picture shows, in a sentence, for those who cannot see it."""
    values = [float(cell) for name in table.plot.y for cell in table.column(name) if _is_number(cell)]
    kinds = {"bars": "Bars", "lines": "Lines", "heat": "A heat map", "pairs": "Bars in pairs",
             "intervals": "Ratios with intervals"}  # fmt: skip
    what = ", ".join(label(name) for name in table.plot.y)
    by = f", one line for each {label(table.plot.by).lower()}" if table.plot.by else ""
    span = f"from {number(min(values))} to {number(max(values))} {table.plot.unit}"
    shown = f"{kinds[table.plot.kind]}: {what} by {label(table.plot.x).lower()}{by}; {span}."
    return f"{shown} The table below has all figures."


@contextmanager
def _styled(theme: Theme, *, salt: str) -> Iterator[None]:
    import matplotlib

    style: Any = {
        "svg.fonttype": "none", "svg.hashsalt": salt, "font.size": 10.5, "font.family": "DejaVu Sans",
        "text.color": theme.ink, "axes.labelcolor": theme.soft, "axes.edgecolor": theme.grid,
        "axes.facecolor": theme.back, "figure.facecolor": theme.back, "xtick.color": theme.soft,
        "ytick.color": theme.soft, "xtick.labelcolor": theme.ink, "ytick.labelcolor": theme.ink,
        "grid.color": theme.grid, "axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False,
        "axes.spines.right": False, "axes.spines.left": False, "xtick.major.size": 0, "ytick.major.size": 0,
        "legend.frameon": False, "legend.fontsize": 10, "xtick.labelsize": 10, "ytick.labelsize": 10,
        "axes.labelsize": 10, "lines.linewidth": 2, "lines.markersize": 6,
    }  # fmt: skip
    with matplotlib.rc_context(style):
        yield


def _draw(table: Table, theme: Theme) -> Figure:
    """A figure without pyplot's global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, _height(table)), layout="constrained")
    axes = figure.subplots()
    match table.plot.kind:
        case "lines":
            _lines(axes, table, theme)
        case "heat":
            _heat(axes, table, theme)
        case "intervals":
            _intervals(axes, table, theme)
        case _:
            _bars(axes, table, theme)
    return figure


def _height(table: Table) -> float:
    rows = len(table.rows)
    match table.plot.kind:
        case "lines":
            return 3.1 + 0.1 * len(_series(table))
        case "heat":
            return 0.6 + rows * 0.4
        case _:
            lines = [wrapped(str(cell)).count("\n") + 1 for cell in table.column(table.plot.x)]
            bars = 1 if table.plot.kind == "intervals" else len(table.plot.y)
            return 0.95 + sum(max(ROW * bars, 0.17 * count) + 0.1 for count in lines)


def _bars(axes: Axes, table: Table, theme: Theme) -> None:
    """Horizontal bars, first row on top; an unknown value is written as such, not drawn as 0."""
    count = len(table.plot.y)
    thick = 0.8 / count
    top = max((float(c) for n in table.plot.y for c in table.column(n) if _is_number(c)), default=1.0) or 1.0
    for place, name in enumerate(table.plot.y):
        cells = table.column(name)
        where = [row + (place - (count - 1) / 2) * thick for row in range(len(cells))]
        values = [float(cell) if _is_number(cell) else 0.0 for cell in cells]
        colour = theme.series[place]
        axes.barh(where, values, height=thick * 0.88, color=colour, label=_entry(name), linewidth=0)
        for at, cell, value in zip(where, cells, values, strict=True):
            text = number(cell) if _is_number(cell) else "not known"
            ink = theme.ink if _is_number(cell) else theme.soft
            axes.text(value + top * 0.012, at, text, va="center", ha="left", fontsize=10, color=ink)
    axes.set_yticks(range(len(table.rows)), [wrapped(str(cell)) for cell in table.column(table.plot.x)])
    axes.set_ylim(len(table.rows) - 0.5, -0.5)
    axes.set_xlim(0, top * 1.24)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(table.plot.unit)
    if count > 1:
        _legend(axes)


def _lines(axes: Axes, table: Table, theme: Theme) -> None:
    """One line per value of `by` (or per column of y), gaps where a value is unknown."""
    for place, (name, points) in enumerate(_series(table)):
        axes.plot(
            [x for x, _ in points], [y for _, y in points], label=name, color=theme.series[place % 8],
            marker=MARKERS[place % 8], linestyle=DASHES[place // 2 % 4], clip_on=False,
        )  # fmt: skip
    steps = sorted({float(cell) for cell in table.column(table.plot.x) if _is_number(cell)})
    if table.plot.log and steps and steps[0] > 0:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    axes.set_xticks(*_ticks(steps))
    axes.set_ylim(bottom=0)
    axes.set_xlabel(label(table.plot.x))
    axes.set_ylabel(table.plot.unit)
    if axes.get_legend_handles_labels()[1] and (table.plot.by or len(table.plot.y) > 1):
        _legend(axes)


def _ticks(steps: Sequence[float]) -> tuple[list[float], list[str]]:
    """The measured places as ticks; of two that would overprint each other the second is left out."""
    span = (steps[-1] - steps[0]) if steps else 0
    kept: list[float] = []
    for step in steps:
        crowded = kept and span and step - kept[-1] < span * 0.045 and steps[-1] / max(step, 1) > 8
        if not crowded:
            kept.append(step)
    return kept, [number(step) for step in kept]


def _series(table: Table) -> list[tuple[str, list[tuple[float, float]]]]:
    by = table.plot.by
    found: dict[str, list[tuple[float, float]]] = {}
    keys = table.column(by) if by else [None] * len(table.rows)
    for name in table.plot.y:
        for key, x, y in zip(keys, table.column(table.plot.x), table.column(name), strict=True):
            if _is_number(x):
                title = str(key) if by else _entry(name)
                value = float(y) if _is_number(y) else math.nan
                found.setdefault(title, []).append((float(x), value))
    return [(name, sorted(points)) for name, points in found.items()]


def _heat(axes: Axes, table: Table, theme: Theme) -> None:
    """Rows x columns with the figure in each cell."""
    from matplotlib.patches import Rectangle

    columns = [table.column(name) for name in table.plot.y]
    values = [float(cell) for column in columns for cell in column if _is_number(cell)]
    low, high = min(values), max(values)
    for x, column in enumerate(columns):
        for y, cell in enumerate(column):
            share = (float(cell) - low) / (high - low) if _is_number(cell) and high > low else 0.0
            fill = _mix(share) if _is_number(cell) else theme.grid
            axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=fill, linewidth=0))
            ink = "#ffffff" if share > 0.5 else "#14203a"
            text = number(cell) if _is_number(cell) else "not known"
            axes.text(x, y, text, ha="center", va="center", fontsize=10.5, color=ink)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(table.rows) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), [short_label(name) for name in table.plot.y])
    axes.set_yticks(range(len(table.rows)), [wrapped(str(cell)) for cell in table.column(table.plot.x)])
    axes.xaxis.tick_top()
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)


def _mix(share: float) -> str:
    return "#" + "".join(
        f"{round(low + (high - low) * share):02x}" for low, high in zip(HEAT_LOW, HEAT_HIGH, strict=True)
    )


def _intervals(axes: Axes, table: Table, theme: Theme) -> None:
    """Middle and interval of each row, the line of no difference, and the 3 % band.

    The axis ends at half and double: beyond it an interval only says that nothing can be said.
    """
    from bench.spread import REGRESSION

    middle, low, high = (table.column(name) for name in table.plot.y)
    axes.axvspan(1 - REGRESSION, 1 + REGRESSION, color=theme.grid, alpha=0.6, linewidth=0)
    axes.axvline(1, color=theme.soft, linewidth=1)
    for row, (value, left, right) in enumerate(zip(middle, low, high, strict=True)):
        if _is_number(value) and _is_number(left) and _is_number(right):
            axes.plot([float(left), float(right)], [row, row], color=theme.series[0], linewidth=3, alpha=0.6)
            axes.plot([float(value)], [row], color=theme.series[0], marker="D")
    ends = [float(cell) for cell in (*low, *high) if _is_number(cell)]
    axes.set_xlim(max(0.5, min(*ends, 0.95)) - 0.02, min(2.0, max(*ends, 1.05)) + 0.02)
    axes.set_yticks(range(len(table.rows)), [wrapped(str(cell)) for cell in table.column(table.plot.x)])
    axes.set_ylim(len(table.rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(table.plot.unit)


def _legend(axes: Axes) -> None:
    """Above the plot, so that it never lies on the data; two columns where both fit."""
    names = axes.get_legend_handles_labels()[1]
    columns = 2 if max(len(name) for name in names) <= 20 else 1
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.3, handlelength=2.4)


def _entry(name: str) -> str:
    """A column's name in a legend; its unit stands at the axis."""
    text = short_label(name)
    return text[:1].upper() + text[1:]


def wrapped(text: str, width: int = 16) -> str:
    """A long name on two or more lines."""
    import textwrap

    return "\n".join(textwrap.wrap(text, width)) or text


def _is_number(cell: Cell) -> TypeGuard[int | float]:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _themed(svg: str, table: Table) -> str:
    """Put CSS variables in for the marks, keep ids apart, and give the picture its accessible name."""
    from html import escape

    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    prefix = "f" + hashlib.sha256(table.id.encode()).hexdigest()[:8]
    body = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", body)
    body = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px var(--sans)", body)
    for name in ("ink", "soft", "grid", "back"):
        body = body.replace(getattr(_MARKS, name), f"var(--{name})")
    for place, mark in enumerate(_MARKS.series):
        body = body.replace(mark, f"var(--s{place + 1})")
    size = re.search(r'viewBox="([^"]+)"', body)
    assert size is not None
    title = f'<title id="{prefix}-t">{escape(table.title)}</title>'
    story = f'<desc id="{prefix}-d">{escape(describe(table))}</desc>'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{size[1]}" role="img" aria-labelledby="{prefix}-t {prefix}-d">{title}{story}'
    )
    return head + body[body.index(">", body.index("<svg")) + 1 :]
