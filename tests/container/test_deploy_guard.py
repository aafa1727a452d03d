"""A deployment whose host runs out of memory: the guard ends the server, says so, and lets it come back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compose import container, deploy, status
from compose.doctor_facts import MEMORY
from errors import HaloforgeError
from images.records import ImageRecord
from tests.container import deploying
from tests.container.deploying import Home
from tests.container.memory import HOG_MIB, MARGIN_MIB, hog, until
from tests.makers import tiny

GIB = 1 << 30


@pytest.fixture
def home(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, cpu_image: ImageRecord) -> Iterator[Home]:
    models = tmp_path_factory.mktemp("models")
    tiny.trunk(models / "trunk.gguf", inert=True)
    with deploying.home(tmp_path, models) as made:
        yield made


def test_status_names_the_guard_and_the_server_comes_back(home: Home) -> None:
    threshold = (MEMORY.ask().available - MARGIN_MIB * (1 << 20)) / GIB
    deployment = deploy.deploy(home.load(guard_gib=round(threshold, 2))).deployment
    with hog(HOG_MIB):
        until(lambda: not status.of(deployment).ready, 60, "the guard ends the server")
        until(lambda: "memory" in status.of(deployment).problem, 30, "status says why")
        problem = status.of(deployment).problem
        assert "guard" in problem
        assert home.inv("status").returncode == 1
    until(lambda: status.of(deployment).ready, 90, "it is back")
    found = container.state(deployment.container)
    assert found is not None
    assert found.restarts >= 1


def test_a_threshold_above_what_is_free_is_refused_before_anything_starts(home: Home) -> None:
    above = MEMORY.ask().available / GIB + 4
    with pytest.raises(HaloforgeError) as caught:
        deploy.deploy(home.load(guard_gib=round(above, 2)))
    assert caught.value.exit_code == 4
    assert home.containers(running=False) == []
