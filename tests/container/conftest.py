"""What the container tests share: the cpu image of the patched tree, built if the engine does not have it."""

from __future__ import annotations

import pytest

from images import build, flavours
from images.records import ImageRecord
from patches import engines, tree


@pytest.fixture(scope="session")
def cpu_image() -> ImageRecord:
    """fetch -> patch -> build of the cpu flavour, as `deploy` does it; from nothing it takes ten minutes."""
    return build.build(flavours.load("cpu"), tree.patched(engines.load()))
