"""Which tests the task `test` chooses, and what pytest's exit codes become."""

from __future__ import annotations

import pytest

from tests import runner


def test_what_takes_an_hour_or_a_gpu_is_left_out_by_default() -> None:
    chosen = runner.Choice().pytest()
    assert chosen[chosen.index("-m", 3) + 1] == "not gpu and not rocm_build and not faults"


def test_everything_on_a_gpu_machine_leaves_nothing_out() -> None:
    assert runner.Choice(everything=True, gpu=True).left_out() == []
    assert "-m" not in runner.Choice(everything=True, gpu=True).pytest()[3:]


def test_unit_and_words_for_pytest_are_passed_on() -> None:
    assert runner.Choice(unit=True, arguments=["-k", "guard"]).pytest()[-3:] == ["tests/unit", "-k", "guard"]


@pytest.mark.parametrize(("codes", "result"), [
    ([0, 0, 0, 0, 0], 0), ([1, 0, 0, 0, 0], 1), ([0, 0, 0, 0, 1], 1), ([0, 0, 0, 0, 5], 2),
    ([0, 0, 0, 0, 2], 130), ([1, 0, 0, 0, 4], 2), ([0, 0, 1, 0, 0], 1), ([0, 0, 0, 1, 0], 1),
])  # fmt: skip
def test_every_part_runs_and_the_first_fault_counts(
    monkeypatch: pytest.MonkeyPatch, codes: list[int], result: int
) -> None:
    left = list(codes)
    monkeypatch.setattr(runner, "_run", lambda argv: left.pop(0))
    assert runner.run(runner.Choice()) == result
    assert left == []
