"""`bench.report`: one HTML page that needs no network, its pictures as files, and all of it as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import paths
import say
from bench import figures
from bench.results import Point, all_points, folder
from bench.sections import GROUPS, Cell, Content, Source, Table, content, published
from bench.words import label, number
from errors import HostLacks
from presets.planner import calibrate

SWEEPS: Final = ("ubatch", "slots", "cache", "mtp", "load", "compare", "ceiling")
WIDE: Final = 7
"""Tables without a plot and with more columns than this take the whole width."""
LONG: Final = 12
"""Tables with more rows than this are folded."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """Where a report was written, and whether it has plots."""

    page: Path
    data: Path
    pictures: tuple[Path, ...]
    plotted: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "page": str(self.page), "data": str(self.data), "pictures": [str(path) for path in self.pictures],
            "plotted": self.plotted,
        }  # fmt: skip


def write(out: Path | None = None, *, results: Path | None = None, pictures: bool = True) -> Written:
    """Write the report of all stored results to a folder (default: `report` beside them).

    Without matplotlib the page holds tables alone and says what to install.

    Raises:
        BadInput: stored results, or the published figures, cannot be read.
        HostLacks: the folder cannot be written.
    """
    out = out or folder() / "report"
    points = all_points(SWEEPS, at=results)
    found = content(points, published(), calibrate.rows())
    plotted = figures.available()
    if not plotted:
        say.warn(f"no plots: matplotlib is not installed; {figures.INSTALL}")
    page, data = out / "index.html", out / "report.json"
    try:
        files = _pictures(found.tables, out) if plotted and pictures else ()
        with paths.replacing(data) as temporary:
            temporary.write_text(_data(found, points), encoding="utf-8")
        with paths.replacing(page) as temporary:
            temporary.write_text(render(found, points, plotted=plotted), encoding="utf-8")
    except OSError as error:
        raise HostLacks(f"cannot write the report to {out}", why=error.strerror or str(error)) from error
    return Written(page=page, data=data, pictures=files, plotted=plotted)


def _pictures(tables: Sequence[Table], out: Path) -> tuple[Path, ...]:
    made = []
    for table in tables:
        if figures.drawable(table):
            for kind, data in figures.export(table).items():
                path = out / f"{table.id}.{kind}"
                with paths.replacing(path) as temporary:
                    temporary.write_bytes(data)
                made.append(path)
    return tuple(made)


def _data(found: Content, points: Sequence[Point]) -> str:
    import json

    value = {
        "tables": [table.model_dump() for table in found.tables],
        "sources": {name: source.model_dump() for name, source in found.sources.items()},
        "points": [point.model_dump() for point in points],
    }
    return json.dumps(value, indent=1, ensure_ascii=False)


def render(found: Content, points: Sequence[Point], *, plotted: bool) -> str:
    """The page as text."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    groups = [
        {"id": name, "title": title, "short": title.partition(":")[0], "cards": cards}
        for name, title in GROUPS.items()
        if (cards := [_card(table, found.sources, plotted) for table in found.of(name)])
    ]
    return environment.get_template("page.html.j2").render(
        groups=groups, tiles=_tiles(found, points), notices=_notices(points, plotted), lead=_lead(points),
        foot="Plots and tables were made from stored results and published figures; nothing was loaded.",
    )  # fmt: skip


def _card(table: Table, sources: dict[str, Source] | Any, plotted: bool) -> dict[str, Any]:
    from markupsafe import Markup

    drawn = plotted and figures.drawable(table)
    numeric = [_numeric(table.column(name)) for name in table.columns]
    # The picture is our own SVG; every text in it went through matplotlib's or our own escaping.
    svg = Markup(figures.inline(table)) if drawn else ""  # noqa: S704
    return {
        "id": table.id, "title": table.title, "text": table.text, "svg": svg,
        "source": sources[table.source] if table.source else None,
        "wide": not drawn and len(table.columns) > WIDE, "folded": drawn or len(table.rows) > LONG,
        "heads": [{"text": label(n), "number": num} for n, num in zip(table.columns, numeric, strict=True)],
        "rows": [[_cell(cell, num) for cell, num in zip(row, numeric, strict=True)] for row in table.rows],
    }  # fmt: skip


def _numeric(cells: Sequence[Cell]) -> bool:
    known = [cell for cell in cells if cell is not None]
    return bool(known) and not any(isinstance(cell, str) for cell in known)


def _cell(cell: Cell, numeric: bool) -> dict[str, Any]:
    return {"text": number(cell), "known": cell is not None, "number": numeric}


def _lead(points: Sequence[Point]) -> str:
    if not points:
        return (
            "Nothing was measured here yet (./inv bench.all --quick does it in minutes); "
            "below are the figures that others published for this hardware."
        )
    days = sorted({point.time[:10] for point in points})
    when = f"on {days[0]}" if len(days) == 1 else f"from {days[0]} to {days[-1]}"
    return f"{len(points)} points measured {when}, beside the figures others published for this hardware."


def _notices(points: Sequence[Point], plotted: bool) -> list[str]:
    found = []
    if not plotted:
        found.append(f"No plots: matplotlib is not installed. To have them: {figures.INSTALL}")
    broken = sum(point.status == "failed" for point in points)
    if broken:
        found.append(f"{broken} of {len(points)} points failed; the last part says which and why.")
    return found


def _tiles(found: Content, points: Sequence[Point]) -> list[tuple[str, str]]:
    """A few figures on top: how well the planner did, how much was measured."""
    rows = [
        dict(zip(table.columns, row, strict=True))
        for table in found.tables
        if table.source is None and table.id.endswith("-errors")
        for row in table.rows
    ]
    exact = [abs(float(row["error_mib"] or 0)) for row in rows if row["certainty"] == "exact"]
    below = sum(float(row["error_percent"] or 0) < -1 for row in rows if row["certainty"] != "exact")
    tiles = []
    held = next((table for table in found.tables if table.id == "calibration"), None)
    if held is not None:
        errors = [abs(float(cell or 0)) for cell in held.column("error_percent")]
        within = sum(error <= calibrate.GOAL * 100 for error in errors)
        tiles.append((f"{within} of {len(errors)}", "runs measured by others planned within 2 %"))
    if exact:
        worst = f"{max(exact):.2f} MiB" if max(exact) >= 0.01 else "< 0.01 MiB"
        tiles.append((worst, f"largest error of {len(exact)} terms planned as exact"))
        tiles.append((f"{below} of {len(rows) - len(exact)}", "bounds that were too low"))
    if points:
        tiles.append((str(sum(point.status == "ok" for point in points)), "points measured"))
        subjects = {point.identity.subject for point in points if point.sweep != "ceiling"}
        tiles.append((str(len(subjects)), "presets or models"))
    tiles.append((str(sum(table.source is not None for table in found.tables)), "published tables"))
    return tiles
