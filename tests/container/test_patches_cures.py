"""Each patch of ours cures what it says: on the image that is deployed, and not on one without it."""

from __future__ import annotations

import pytest

from checks.launcher import ImageLauncher, Model
from images import build, flavours
from images.records import ImageRecord
from patches import engines, tree
from tests.container import cures


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("cures")
    folder.chmod(0o755)
    return cures.models(folder)


@pytest.fixture(scope="module")
def bare_image() -> ImageRecord:
    """The engine without our patches. With a warm compiler cache some thirty files are compiled."""
    return build.build(flavours.load("cpu"), tree.patched(engines.load(), without=["L3", "L1", "L2", "L4"]))


def test_l3_neighbours_do_not_change_an_answer(cpu_image: ImageRecord, models: dict[str, Model]) -> None:
    wrong, count = cures.wrong_answers(ImageLauncher(cpu_image.id, models["plain"]), rounds=4)
    assert (wrong, count) == (0, 96)


def test_l1_a_dense_head_starts(cpu_image: ImageRecord, models: dict[str, Model]) -> None:
    assert cures.starts(ImageLauncher(cpu_image.id, models["dense"])) == ""


def test_l2_drafts_do_not_depend_on_the_request_before(
    cpu_image: ImageRecord, models: dict[str, Model]
) -> None:
    first, *others = cures.candidates_of_one_request(ImageLauncher(cpu_image.id, models["hidden"]))
    assert len(first) > 100
    assert others == [first, first]


def test_l4_a_checkpoint_of_another_prompt_is_not_used(
    cpu_image: ImageRecord, models: dict[str, Model]
) -> None:
    assert cures.checkpoint_of_another_prompt(ImageLauncher(cpu_image.id, models["plain"])) < 1e-3


@pytest.mark.faults
def test_without_l3_neighbours_change_answers(bare_image: ImageRecord, models: dict[str, Model]) -> None:
    wrong, _ = cures.wrong_answers(ImageLauncher(bare_image.id, models["plain"]), rounds=12)
    assert wrong > 0, "unpatched llama.cpp answers right: drop L3"


@pytest.mark.faults
def test_without_l1_a_dense_head_aborts(bare_image: ImageRecord, models: dict[str, Model]) -> None:
    why = cures.starts(ImageLauncher(bare_image.id, models["dense"]))
    assert "GGML_ASSERT" in why, "unpatched llama.cpp starts: drop L1"


@pytest.mark.faults
def test_without_l2_drafts_depend_on_the_request_before(
    bare_image: ImageRecord, models: dict[str, Model]
) -> None:
    lists = cures.candidates_of_one_request(ImageLauncher(bare_image.id, models["hidden"]))
    assert lists[0] != lists[1], "unpatched llama.cpp drafts the same: drop L2"


@pytest.mark.faults
def test_without_l4_a_checkpoint_of_another_prompt_is_used(
    bare_image: ImageRecord, models: dict[str, Model]
) -> None:
    error = cures.checkpoint_of_another_prompt(ImageLauncher(bare_image.id, models["plain"]))
    assert error > 0.01, "unpatched llama.cpp does not restore it: drop L4"
