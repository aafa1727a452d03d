"""Stored points and published figures as tables: nothing invented, unknown kept apart from zero."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import sections
from bench.results import Identity, Point
from bench.sections import Table, content, published
from errors import BadInput

EMPTY = sections.Published.model_construct(sources={}, tables=())


def point(sweep: str, settings: dict[str, Any], **given: Any) -> Point:
    identity = given.pop("identity", Identity(subject="demo", digest="sha256:abc"))
    return Point(sweep=sweep, settings=settings, identity=identity, host={"cpu": "c"}, **given)


def table(points: list[Point], identity: str) -> Table:
    return next(one for one in content(points, EMPTY).tables if one.id.endswith(identity))


def test_every_published_table_has_a_source_and_draws_columns_it_has() -> None:
    found = published()
    assert {one.id for one in found.tables} >= {"e4", *(f"h{number}" for number in range(1, 10))}
    assert any(one.id.startswith("p4") for one in found.tables)
    assert all(found.sources[one.source or ""].url.startswith("https://") for one in found.tables)


@pytest.mark.parametrize(
    ("identity", "row", "cells"),
    [
        ("h3", "n4 p0", [36.0, 32.5, 31.1, 44.5, 0.55]),
        ("h2", "stock Q4_K_XL", [None, None, None, None]),
        ("e4", "IQ3 8x131072", [88.0, 93.1, 13.7, 82.2, 9.6]),
    ],
)
def test_published_rows_are_those_of_the_sources(identity: str, row: str, cells: list[float | None]) -> None:
    found = next(one for one in published().tables if one.id == identity)
    assert [list(one[1:]) for one in found.rows if one[0] == row] == [cells]


@pytest.mark.parametrize(
    "text",
    [
        "sources: {}\ntables: []\n",
        "sources: {}\ntables: [{id: a, group: memory, title: t, columns: [x], rows: [], source: none}]\n",
        "sources: {s: {name: n, url: u, revision: r, note: n}}\n"
        "tables: [{id: a, group: memory, title: t, columns: [x, y], rows: [[1]], source: s}]\n",
        "sources: {s: {name: n, url: u, revision: r, note: n}}\n"
        "tables: [{id: a, group: memory, title: t, columns: [x], rows: [], source: s, "
        "plot: {kind: bars, x: z}}]\n",
        ": : :",
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "published.yaml"
    file.write_text(text)
    with pytest.raises(BadInput, match="cannot be used"):
        published(file)


def test_the_planner_is_held_against_the_log() -> None:
    mib = 2.0**20
    points = [
        point(
            "ubatch", {"batch": 512, "ubatch": 64},
            predicted={"compute_host_bytes": 11 * mib, "kv_bytes": mib},
            measured={"compute_host_bytes": 10 * mib},
        )
    ]  # fmt: skip
    found = table(points, "-errors")
    assert [row[1:6] for row in found.rows] == [("compute", "exact", 11.0, 10.0, 1.0)]
    assert found.column("error_percent") == pytest.approx([10.0])
    assert table(points, "-error").rows == (("compute", "exact", 1, 1.0, 1.0),)
    assert not [
        one for one in content([point("ubatch", {"ubatch": 64})], EMPTY).tables if one.group == "memory"
    ]


def test_a_clamped_point_stands_apart_from_the_curve() -> None:
    points = [
        point("ubatch", {"batch": 512, "ubatch": size}, measured={"prompt_tps_d0": 1.0},
              samples=[{"depth": 0, "prompt_tps": 1.0}])
        for size in (128, 64)
    ]  # fmt: skip
    points.append(
        point("ubatch", {"batch": 64, "ubatch": 512}, samples=[{"depth": 0}], measured={"prompt_tps_d0": 9.0})
    )
    assert table(points, "-prompt").column("ubatch") == [128, 64]
    assert table(points, "-clamp").column("ubatch") == [512]


def test_two_images_are_two_curves() -> None:
    points = [
        point("slots", {"users": 1, "load": "short"}, measured={"total_tps": 1.0},
              identity=Identity(subject="demo", digest=f"sha256:{digest}"))
        for digest in ("aa", "bb")
    ]  # fmt: skip
    titles = [one.title for one in content(points, EMPTY).of("slots") if "together" in one.title]
    assert titles == ["All users together: demo, aa", "All users together: demo, bb"]


def test_what_failed_is_listed_and_drawn_nowhere() -> None:
    points = [point("cache", {"talk": "t"}, status="failed", reason="it died")]
    found = content(points, EMPTY)
    assert [one.group for one in found.tables] == ["run", "run", "run"]
    assert table(points, "failed").rows == (("cache", "talk=t", "it died"),)


def test_a_value_that_was_not_measured_stays_unknown() -> None:
    points = [point("load", {"files": "cold", "turn": 0}, measured={"healthy_s": 1.0})]
    assert table(points, "-load").column("gtt_peak_mib") == [None]
