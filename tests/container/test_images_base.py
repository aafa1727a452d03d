"""Bases from a real registry and from a real archive: what is pinned is what is taken, or it is an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from errors import BuildFailed, CheckFailed
from images import base as bases
from images import build, daemon, flavours
from images.base import Base, Registry
from images.records import ImageRecord
from patches import engines, tree
from tests.container.registry import served


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture
def remote(cpu_image: ImageRecord, registry: str) -> Iterator[Base]:
    """A base whose registry image is really there: the cpu flavour's own base, pushed to the registry."""
    image = f"{registry}/library/debian:test"
    daemon.docker("tag", bases.ensure(bases.load("trixie")).id, image)
    daemon.docker("push", image)
    found = daemon.inspect(image) or {}
    digest = next(entry for entry in found["RepoDigests"] if registry in entry).partition("@")[2]
    daemon.docker("image", "rm", image)
    base = bases.load("trixie").model_copy(update={"registry": Registry(image=image, digest=digest)})
    yield base
    daemon.docker(
        "image", "rm", bases.tag_of(base), base.registry.pinned if base.registry else "", check=False
    )


def test_a_registry_image_is_pulled_by_its_digest(remote: Base) -> None:
    assert remote.registry is not None
    image = bases.ensure(remote)
    assert image.origin == remote.registry.pinned
    assert daemon.inspect(image.tag) is not None
    assert bases.ensure(remote) == image


def test_a_digest_that_the_registry_does_not_have_is_not_worked_around(remote: Base) -> None:
    assert remote.registry is not None
    wrong = Registry(image=remote.registry.image, digest="sha256:" + "0" * 64)
    with pytest.raises(CheckFailed, match="not available with the pinned digest") as caught:
        bases.ensure(remote.model_copy(update={"registry": wrong}))
    assert "images.pin" in caught.value.hint


def test_a_registry_that_does_not_answer_gives_way_to_packages_aloud(
    cpu_image: ImageRecord, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(bases, "_made", lambda base, debian: made.append(debian.suites[0]))
    nowhere = Registry(image="127.0.0.1:1/library/debian:test", digest="sha256:" + "0" * 64)
    bases.ensure(bases.load("trixie").model_copy(update={"registry": nowhere}))
    assert made == ["trixie"]
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_a_pinned_version_that_the_archive_lost_names_the_one_it_has(cpu_image: ImageRecord) -> None:
    base = bases.load("trixie").model_copy(update={"pins": {"ccache": "0.0.1-1"}})
    with pytest.raises(BuildFailed, match="moved on") as caught:
        build.probe(flavours.load("cpu"), tree.patched(engines.load()), base=base)
    assert "pinned ccache=0.0.1-1, the archive has 4." in caught.value.why


@pytest.mark.parametrize("flavour", ["vulkan", "rocm"])
def test_the_base_of_a_gpu_flavour_can_build_it(flavour: str) -> None:
    """CMake finds the device's toolchain and configures; for ROCm one kernel compiles, for gfx1151 alone."""
    log = build.probe(flavours.load(flavour), tree.patched(engines.load())).read_text()
    assert "Configuring done" in log
    assert {"vulkan": "Including Vulkan backend", "rocm": "HIP and hipBLAS found"}[flavour] in log
    if flavour == "rocm":
        assert "1 amdgcn-amd-amdhsa--gfx1151" in log
