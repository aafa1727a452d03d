"""Stored points survive kills and resumes, and a resumed run measures nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.results import Identity, Point, Store
from errors import BadInput

ME = Identity(subject="demo", digest="sha256:1")


def point(**given: Any) -> Point:
    values: dict[str, Any] = {"sweep": "ubatch", "settings": {"ubatch": 64}, "identity": ME, "host": {}}
    return Point(**values | given)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    store = Store("ubatch", at=tmp_path)
    first = point(samples=[{"ttft_s": 0.5, "note": "ä"}], measured={"compute_bytes": 1.5})
    store.append(first)
    assert store.points() == [first]
    assert store.points()[0].values("ttft_s") == [0.5]


def test_a_later_point_replaces_the_one_of_the_same_key(tmp_path: Path) -> None:
    store = Store("ubatch", at=tmp_path)
    store.append(point(status="failed", reason="it died"))
    assert store.done() == {}
    store.append(point(measured={"ttft_s": 1.0}))
    store.append(point(settings={"ubatch": 128}))
    assert [found.settings["ubatch"] for found in store.points()] == [64, 128]
    assert len(store.done()) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"settings": {"ubatch": 128}},
        {"identity": Identity(subject="demo", digest="sha256:2")},
        {"identity": Identity(subject="demo", digest="sha256:1", series="x")},
        {"sweep": "slots"},
        {"quick": True},
    ],
)
def test_what_makes_a_point_another_one(other: dict[str, Any]) -> None:
    assert point(**other).key != point().key


def test_the_port_and_the_build_text_do_not(tmp_path: Path) -> None:
    same = Identity(subject="demo", digest="sha256:1", url="http://x:1", build="b11434")
    assert point(identity=same).key == point().key


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(min_value=0))
def test_a_kill_in_the_middle_of_a_line_loses_that_line_alone(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    store = Store("ubatch", at=tmp_path_factory.mktemp("cut"))
    store.append(point())
    whole = store.path.stat().st_size
    store.append(point(settings={"ubatch": 128}))
    torn = store.path.read_bytes()
    store.path.write_bytes(torn[: whole + cut % (len(torn) - whole)])
    assert store.points()[0].settings["ubatch"] == 64
    store.append(point(settings={"ubatch": 256}))
    kept = [found.settings["ubatch"] for found in store.points()]
    assert kept in ([64, 256], [64, 128, 256])


def test_a_line_of_another_form_is_refused_with_its_place(tmp_path: Path) -> None:
    store = Store("ubatch", at=tmp_path)
    store.append(point())
    with store.path.open("a") as file:
        file.write('{"sweep": "ubatch", "colour": "red"}\n')
    with pytest.raises(BadInput, match=r"ubatch\.jsonl:2"):
        store.points()
