"""A build that is killed, and what the next one makes of it: the same content, bit for bit."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import paths
from images import build, daemon, flavours
from images.records import ImageRecord
from patches import engines, tree
from patches.tree import PatchedTree

OTHER = "killed"
"""A name in the identity that makes this another image than the one the other tests use."""

CHILD = f"""
import dataclasses
from images import build, flavours
from patches import engines, tree
found = tree.patched(engines.load())
other = dataclasses.replace(found, identity=found.identity + "-{OTHER}")
build.build(flavours.load("cpu"), other, fresh=True)
"""


@pytest.fixture
def other(cpu_image: ImageRecord) -> Iterator[PatchedTree]:
    found = tree.patched(engines.load())
    other = dataclasses.replace(found, identity=f"{found.identity}-{OTHER}")
    yield other
    for image in daemon.labelled({"io.haloforge.identity": other.identity}):
        daemon.docker("image", "rm", "--force", image)


def killed_while_compiling() -> None:
    """Start a build in a process group of its own and end all of it with SIGKILL once the compiler runs."""
    said = []
    with subprocess.Popen(
        [sys.executable, "-c", CHILD],
        cwd=paths.ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if "RUN --mount=type=cache" in line:
                break
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, said


def layers(image: str) -> list[str]:
    """The digests of the content of an image's layers."""
    found = daemon.inspect(image)
    assert found is not None
    return list(found["RootFS"]["Layers"])


def test_the_next_build_finishes_it_and_gives_the_same_content(
    cpu_image: ImageRecord, other: PatchedTree
) -> None:
    killed_while_compiling()
    left = list((paths.home() / "build").glob("context-*"))
    assert left
    assert daemon.labelled({"io.haloforge.identity": other.identity}) == []
    record = build.build(flavours.load("cpu"), other, fresh=True)
    assert record.identity == other.identity
    assert not any(path.exists() for path in left)
    assert layers(record.id) == layers(cpu_image.id)
