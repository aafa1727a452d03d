"""Records read from an image's labels, the list for people, and the bill of materials."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from errors import BadInput
from images.records import ImageRecord, parse
from images.sbom import Package, distribution, document, parse_status
from images.table import age, table

ID = "sha256:" + "5" * 64


def inspected(**changes: Any) -> dict[str, Any]:
    labels = {
        "org.opencontainers.image.revision": "5e03bdd8700948b9c41c54dd1b00f28a2aebc03f",
        "org.opencontainers.image.base.name": "docker.io/library/debian@sha256:1",
        "io.haloforge.engine": "llama.cpp",
        "io.haloforge.pin": "b11434-5e03bdd87",
        "io.haloforge.series": "ab" * 32,
        "io.haloforge.patches": json.dumps([["L1", "01" * 32]]),
        "io.haloforge.identity": "b11434-5e03bdd87-abababababab",
        "io.haloforge.flavour": "cpu",
        "io.haloforge.cpu": "generic",
        "io.haloforge.device": "",
        "io.haloforge.recipe": "ef" * 32,
    }
    found = {
        "Id": ID,
        "RepoTags": ["haloforge/llama.cpp:cpu-b11434-1"],
        "RepoDigests": [],
        "Created": "2026-11-30T13:24:05.123456789Z",
        "Size": 50_000_000,
        "Config": {"Labels": labels},
    }
    return {**found, **changes}


def record(**changes: Any) -> ImageRecord:
    return parse(inspected(**changes), "usage: ...")


def test_a_local_image_is_named_by_its_tag_and_id() -> None:
    found = record()
    assert (found.ref, found.digest) == ("haloforge/llama.cpp:cpu-b11434-1", ID)
    assert found.created == datetime(2026, 11, 30, 13, 24, 5, 123456, tzinfo=UTC)
    assert found.patches == (("L1", "01" * 32),)


def test_a_pulled_image_is_named_by_its_repository_digest() -> None:
    ref = "registry.example/llama.cpp@sha256:" + "9" * 64
    assert record(RepoDigests=[ref]).ref == "haloforge/llama.cpp:cpu-b11434-1"
    found = record(RepoDigests=[ref], RepoTags=[])
    assert (found.ref, found.digest) == (ref, "sha256:" + "9" * 64)


def test_an_image_without_a_tag_is_named_by_its_id() -> None:
    assert record(RepoTags=[]).ref == ID


def test_a_foreign_image_is_refused() -> None:
    with pytest.raises(BadInput, match="not built by Haloforge"):
        record(Config={"Labels": None})


def test_the_json_form_is_json_and_leaves_the_help_out() -> None:
    text = json.dumps(record().to_json())
    assert "usage" not in text
    assert '"pin": "b11434-5e03bdd87"' in text


def test_the_table_shows_pin_series_flavour_size_and_age() -> None:
    lines = table([record()], datetime(2026, 11, 30, 15, 30, tzinfo=UTC)).splitlines()
    assert len(lines) == 2
    for word in ("b11434-5e03bdd87", "abababababab (1)", "cpu generic", "47.7 MiB", "2 h"):
        assert word in lines[1]
    assert "./inv build" in table([])


def test_a_clock_that_went_back_gives_no_negative_age() -> None:
    assert age(-5) == "0 s"


STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Source: glibc
Version: 2.41-12
Description: a library
 with a: colon in the text

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: libgomp1
Status: install ok installed
Architecture: amd64
Source: gcc-14 (14.2.0-19)
Version: 14.2.0-19
"""


def test_only_installed_packages_count() -> None:
    assert parse_status(STATUS) == [
        Package(name="libc6", version="2.41-12", architecture="amd64", source="glibc"),
        Package(name="libgomp1", version="14.2.0-19", architecture="amd64", source="gcc-14"),
    ]


def test_a_distribution_without_a_version_is_named_by_its_codename() -> None:
    assert distribution('ID=debian\nVERSION_ID="13"\n') == ("debian", "13")
    assert distribution("ID=debian\nVERSION_CODENAME=forky\n") == ("debian", "forky")


def test_the_bill_of_materials_is_valid_complete_and_the_same_each_time() -> None:
    text = document(record(), parse_status(STATUS), ("debian", "13"))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    parts = {part["name"]: part for part in json.loads(text)["components"]}
    assert set(parts) == {"llama.cpp", "libc6", "libgomp1"}
    assert parts["libc6"]["purl"] == "pkg:deb/debian/libc6@2.41-12?arch=amd64&distro=debian-13"
    assert parts["llama.cpp"]["version"].startswith("5e03bdd87")
    patches = parts["llama.cpp"]["pedigree"]["patches"]
    assert [patch["diff"]["url"] for patch in patches] == ["urn:haloforge:patch:L1:sha256:" + "01" * 32]
    assert document(record(), parse_status(STATUS), ("debian", "13")) == text
