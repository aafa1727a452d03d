"""What the container tests share: the cpu image of the patched tree, built if the engine does not have it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checks.arrangement import Arrangement
from checks.launcher import HostLauncher, ImageLauncher, Launcher, Model, Running
from images import build, flavours
from images.records import ImageRecord
from patches import engines, tree


@pytest.fixture(scope="session")
def cpu_image() -> ImageRecord:
    """fetch -> patch -> build of the cpu flavour, as `deploy` does it; from nothing it takes ten minutes."""
    return build.build(flavours.load("cpu"), tree.patched(engines.load()))


@pytest.fixture(scope="session")
def launch(request: pytest.FixtureRequest) -> Callable[[Model], Launcher]:
    """What starts the engine on a model: the cpu image, or while developing the programs in the folder
    that HALOFORGE_TEST_ENGINE names."""
    programs = os.environ.get("HALOFORGE_TEST_ENGINE")
    if programs:
        return lambda model: HostLauncher(Path(programs), model)
    image: ImageRecord = request.getfixturevalue("cpu_image")
    return lambda model: ImageLauncher(image.id, model)


@pytest.fixture
def llama_server(
    launch: Callable[[Model], Launcher],
) -> Iterator[Callable[[Model, Arrangement], Running]]:
    """A function that starts a llama-server; all that it started are stopped when the test ends."""
    started: list[tuple[Launcher, Running]] = []

    def start(model: Model, arrangement: Arrangement) -> Running:
        launcher = launch(model)
        started.append((launcher, launcher.start(arrangement)))
        return started[-1][1]

    yield start
    for launcher, running in started:
        launcher.stop(running)
