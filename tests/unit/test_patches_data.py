"""Engines and series as data: what the loaders refuse, and that what this repository ships is sound."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import documents
from errors import BadInput
from patches import diff, engines, series
from paths import ROOT

GOOD: dict[str, Any] = {
    "repository": "https://example.org/x",
    "commit": "ab" * 20,
    "build_number": 7,
    "licence": "MIT",
    "reviewed": "2026-11-30",
    "sources": [{"kind": "git", "url": "https://example.org/x.git"}],
    "cmake": {"A": True, "B": False, "C": 4},
    "traits": {},
}


def engine(**changes: Any) -> engines.Engine:
    document = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    return engines.parse(document, Path("x/engine.yaml"))


def test_switches_come_back_as_cmake_writes_them() -> None:
    assert engine().cmake == {"A": "ON", "B": "OFF", "C": "4"}


def test_the_pin_tells_cmake_its_number_and_commit() -> None:
    assert engine().pin == "b7-ababababa"
    assert engine().cmake_pins == {"LLAMA_BUILD_NUMBER": "7", "LLAMA_BUILD_COMMIT": "ababababa"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"commit": "ab12"}, "commit"),
        ({"commit": "main"}, "commit"),
        ({"commit": None}, "commit: Field required"),
        ({"sources": []}, "sources"),
        ({"sources": [{"kind": "archive", "url": "https://e/x.tgz"}]}, "sha256: Field required"),
        ({"sources": [{"kind": "archive", "url": "https://e/x.tgz", "sha256": "12"}]}, "sha256"),
        ({"sources": [{"kind": "pypi", "project": "p", "file": "p-1.tar.gz"}]}, "sha256: Field required"),
        ({"sources": [{"kind": "ftp", "url": "x"}]}, "sources.0"),
        ({"build_number": 0}, "build_number"),
        ({"licence": None}, "licence"),
        ({"colour": "red"}, "colour: Extra inputs"),
        ({"traits": {"indexer_k_heads": -1}}, "traits.indexer_k_heads"),
    ],
)
def test_an_engine_file_that_is_wrong(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadInput) as refusal:
        engine(**changes)
    assert reason in refusal.value.why
    assert refusal.value.exit_code == 2


def test_an_unknown_engine_suggests_the_near_one() -> None:
    with pytest.raises(BadInput) as refusal:
        engines.load("engramhallo")
    assert "did you mean 'engramhalo'?" in refusal.value.why


def test_paths_are_no_engine_names() -> None:
    for name in ("../patches", "", ".", "faults", "/etc"):
        with pytest.raises(BadInput):
            engines.load(name)


def test_a_key_given_twice_is_refused_with_its_line() -> None:
    with pytest.raises(BadInput, match=r"x:2: the key 'a' is given twice"):
        documents.parse("a: 1\na: 2\n", "x")


ENTRY: dict[str, Any] = {
    "id": "A", "name": "a", "file": "a.patch", "sha256": "ab" * 32, "purpose": "x", "origin": "x",
    "forwarded": "no", "enabled": True, "why": "x", "dropped_when": {}, "proved_by": "x", "risk": "x",
}  # fmt: skip


def parsed(*entries: dict[str, Any], **more: Any) -> series.Series:
    return series.parse({"patches": [dict(entry) for entry in entries], **more}, Path("series.yaml"))


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([ENTRY, ENTRY], "an id is given twice"),
        ([{**ENTRY, "needs": ["B"]}, {**ENTRY, "id": "B"}], "A needs B, which does not stand before it"),
        ([{**ENTRY, "fetch": {"url": "https://e/p"}}], "exactly one of file and fetch"),
        ([{**ENTRY, "file": ""}], "exactly one of file and fetch"),
        ([{**ENTRY, "sha256": None}], "without sha256 cannot be on"),
        ([{**ENTRY, "sha256": None, "enabled": False}], "without sha256 cannot be on"),
        ([{**ENTRY, "file": "../a.patch"}], "beside series.yaml"),
        ([{**ENTRY, "id": "not an id"}], "id"),
        ([{key: value for key, value in ENTRY.items() if key != "proved_by"}], "proved_by"),
    ],
)
def test_a_series_that_is_wrong(entries: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(BadInput) as refusal:
        parsed(*entries)
    assert reason in refusal.value.why


def test_an_empty_section_is_nothing() -> None:
    assert series.parse(yaml.safe_load("patches:\ndropped:\n"), Path("x")).patches == ()
    assert series.parse(None, Path("x")).patches == ()


def test_selection_keeps_the_order() -> None:
    data = parsed({**ENTRY, "id": "A"}, {**ENTRY, "id": "B", "enabled": False}, {**ENTRY, "id": "C"})
    assert [e.id for e in series.chosen(data)] == ["A", "C"]
    assert [e.id for e in series.chosen(data, also=["B"])] == ["A", "B", "C"]
    assert [e.id for e in series.chosen(data, without=["A"], also=["B"])] == ["B", "C"]


# --- what this repository ships ------------------------------------------------------------------------


def test_the_default_engine_comes_first() -> None:
    assert engines.names() == ["llama.cpp", "engramhalo", "llama.cpp-b10685"]


@pytest.mark.parametrize("name", engines.names())
def test_every_engine_and_every_patch_file_is_sound(name: str) -> None:
    found = engines.load(name)
    data = series.of(found)
    own = [entry for entry in data.patches if entry.file]
    for item in series.load(own, found.folder):
        assert re.search(r"(?m)^Description: ", item.patch.header), item.entry.id
        assert re.search(r"(?m)^Forwarded: (no|not-needed|https://)", item.patch.header), item.entry.id
    listed = {entry.file for entry in own}
    assert {path.name for path in found.folder.glob("*.patch")} == listed, "a file without an entry"
    assert all(drop.evidence for drop in data.dropped)


def test_our_own_patches_for_the_default_engine_name_a_test_that_exists() -> None:
    found = engines.load()
    for entry in series.of(found).patches:
        if entry.enabled:
            path, _, test = entry.proved_by.partition("::")
            assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), entry.id


def test_the_patches_of_the_older_tool_are_not_carried_again() -> None:
    dropped = {drop.id: drop.verdict for drop in series.of(engines.load()).dropped}
    assert dropped == {
        "0001": "upstream", "0002": "upstream", "0003": "not-reachable", "0004": "harmful",
        "0005": "upstream",
    }  # fmt: skip


def test_the_ring_and_the_host_buffer_patch_exclude_each_other() -> None:
    data = series.of(engines.load("llama.cpp-b10685"))
    ring = next(entry for entry in data.patches if entry.id == "0003")
    pinned = ring.model_copy(update={"sha256": "ab" * 32})
    with_ring = series.Series(patches=tuple(pinned if e.id == "0003" else e for e in data.patches))
    with pytest.raises(BadInput, match="exclude each other") as refusal:
        series.chosen(with_ring, also=["0003"])
    assert "inactive" in refusal.value.why
    assert [e.id for e in series.chosen(with_ring, also=["0003"], without=["H1"])][-1] == "0003"


def test_no_planted_fault_is_on_by_itself() -> None:
    data = series.read(series.FAULTS)
    assert [entry.id for entry in data.patches if entry.enabled] == []
    for item in series.load(data.patches, series.FAULTS):
        assert sum(len(file.hunks) for file in item.patch.files) >= 1
        assert isinstance(item.patch, diff.Patch)
