"""The patches on the device they are meant for. Written without one at hand: the first run is to be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.launcher import ImageLauncher, Model
from images import build, flavours
from patches import engines, tree
from tests.container import cures

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/kfd").exists(), reason="no /dev/kfd: this machine has no ROCm device"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("cures")
    folder.chmod(0o755)
    return cures.models(folder)


def on_rocm(engine: str, model: Model) -> ImageLauncher:
    """The engine's rocm image with the device nodes that exist, all layers on the GPU."""
    image = build.build(flavours.load("rocm"), tree.patched(engines.load(engine)))
    nodes = [Path("/dev/kfd"), *sorted(Path("/dev/dri").glob("renderD*"))]
    groups = {str(node.stat().st_gid) for node in nodes}
    options = [f"--device={node}" for node in nodes]
    options += [word for group in sorted(groups) for word in ("--group-add", group)]
    return ImageLauncher(image.id, model, extra=("-ngl", "99"), options=options)


def test_l3_neighbours_do_not_change_an_answer(models: dict[str, Model]) -> None:
    wrong, count = cures.wrong_answers(on_rocm("llama.cpp", models["plain"]), rounds=8)
    assert (wrong, count) == (0, 192)


def test_l4_a_checkpoint_of_another_prompt_is_not_used(models: dict[str, Model]) -> None:
    assert cures.checkpoint_of_another_prompt(on_rocm("llama.cpp", models["plain"])) < 1e-2


@pytest.mark.parametrize("engine", ["llama.cpp", "llama.cpp-b10685"])
def test_h1_four_slots_answer_as_one(engine: str, models: dict[str, Model]) -> None:
    """b11434 holds upstream's cure, b10685 ours (H1): long prompts at once, several ubatches each."""
    wrong, count = cures.wrong_answers(on_rocm(engine, models["plain"]), rounds=8, drafting=False)
    assert (wrong, count) == (0, 192)
