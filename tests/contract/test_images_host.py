"""A host that cannot take what a build writes: one clear error, before anything is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import command
from errors import HostLacks
from images import base as bases
from images import build, daemon, flavours
from images.base import BaseImage
from patches import engines
from patches.tree import PatchedTree


@pytest.fixture
def tree(tmp_path: Path) -> PatchedTree:
    """A tree that knows every option, and has more in it than a small disk holds."""
    place = tmp_path / "tree"
    place.mkdir()
    flavour, engine = flavours.load("cpu"), engines.load()
    names = {**engine.cmake, **engine.cmake_pins, **flavour.cmake}
    (place / "CMakeLists.txt").write_text("\n".join(names))
    (place / "large.cpp").write_bytes(b"\0" * (4 << 20))
    return PatchedTree(
        path=place, engine=engine, series_digest="0" * 64, identity="test", patches=(), digest="0" * 64
    )  # fmt: skip


@pytest.fixture(autouse=True)
def base_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found = BaseImage(tag="haloforge/base:none", id="sha256:0", origin="nowhere")
    monkeypatch.setattr(bases, "ensure", lambda base: found)
    monkeypatch.setattr(build, "_existing", lambda made: None)


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    place.mkdir()
    command.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place])
    try:
        yield place
    finally:
        command.run(["umount", place])


def test_a_home_that_is_full_is_said_so(
    tree: PatchedTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "home") as home:
        monkeypatch.setenv("HALOFORGE_HOME", str(home))
        with pytest.raises(HostLacks, match="cannot write") as caught:
            build.build(flavours.load("cpu"), tree)
        assert "full" in caught.value.why
        assert list((home / "build").glob("context-*")) == []


def test_a_home_that_is_a_file_is_said_so(
    tree: PatchedTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HALOFORGE_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(HostLacks, match="cannot write"):
        build.build(flavours.load("cpu"), tree)


def test_a_docker_disk_without_room_stops_before_the_build(
    tree: PatchedTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALOFORGE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(build, "_FREE_BYTES", 1 << 60)
    with pytest.raises(HostLacks, match="nearly full") as caught:
        build.build(flavours.load("cpu"), tree)
    assert "docker builder prune" in caught.value.hint


def test_a_daemon_that_is_not_there_is_said_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(HostLacks, match="does not answer") as caught:
        daemon.inspect("haloforge/llama.cpp:none")
    assert "doctor" in caught.value.hint


def test_an_image_that_is_not_there_is_none() -> None:
    assert daemon.inspect("haloforge/llama.cpp:no-such-tag") is None
