"""The suite against a stub server: it passes a sound one and names what is wrong with a faulty one."""

from __future__ import annotations

import pytest

from checks import suite
from checks.report import Outcome, Report
from checks.room import Room
from errors import BadInput
from tests.contract.stub_engine import KEY, Fault, stub_engine

ACCEPTED = ["contract.effort", "contract.key"]
"""Skips that a stub cannot avoid: it knows no reasoning effort, and has no key unless it is given one."""


def checked(fault: Fault | None = None, *, only: list[str] | None = None, key: str | None = None) -> Report:
    with stub_engine(fault, key=key) as stub, Room(url=stub.url, key=key, quick=True) as room:
        return suite.run(room, target=stub.url, only=only or (), accept=ACCEPTED)


def failed(report: Report) -> dict[str, str]:
    return {result.id: result.detail for result in report.failures}


def test_a_sound_server_passes_all_that_can_be_asked_of_it() -> None:
    report = checked()
    assert report.passed, report.table()
    assert set(report.left_out) == {check.id for check in suite.CHECKS if check.starts and check.quick}
    passed = {result.id for result in report.results if result.outcome is Outcome.PASSED}
    assert passed >= {
        "contract.too-long", "contract.crowd", "contract.stream", "contract.schema", "contract.malformed",
        "rows.strangers", "cut.pieces", "cache.reused", "cache.continued", "cache.edited",
        "cache.first-token", "slots.answers", "slots.identical", "slots.alternating", "slots.lasting",
        "slots.words", "slots.tools",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "check", "words"),
    [
        (Fault(previous_every=12), "slots.answers", "the answer of prompt"),
        (Fault(previous_every=5), "rows.strangers", "another token at place 0"),
        (Fault(slashes_after=20), "slots.lasting", "one character"),
        (Fault(slashes_after=20), "slots.answers", "repeats one character"),
        (Fault(empty_every=9), "slots.answers", "empty"),
        (Fault(first_subject=True), "slots.words", "another's word"),
        (Fault(broken_tools=2), "slots.tools", "tool call 1 of 5 is broken: its arguments are no JSON"),
        (Fault(overrun_at=3), "contract.crowd", "common pool overran"),
        (Fault(closes=0.2), "contract.stream", "dropped the connection"),
        (Fault(cut_stream=True), "contract.stream", "broke off"),
    ],
)
def test_a_fault_is_caught_by_the_right_check(fault: Fault, check: str, words: str) -> None:
    found = failed(checked(fault, only=[check]))
    assert words in found[check]


def test_a_skip_that_was_not_accepted_is_a_failure() -> None:
    with stub_engine() as stub, Room(url=stub.url, quick=True) as room:
        report = suite.run(room, target=stub.url, only=["rows.split-2", "contract.malformed"])
    assert not report.passed
    assert "needs to start servers" in failed(report)["rows.split-2"]
    assert "to accept these: --accept rows.split-2" in report.table()


def test_an_accepted_skip_is_shown_and_passes() -> None:
    with stub_engine() as stub, Room(url=stub.url, quick=True) as room:
        report = suite.run(
            room, target=stub.url, only=["rows.split-2", "contract.malformed"], accept=["rows"]
        )
    assert report.passed
    assert "skipped (accepted)" in report.table()


def test_a_run_in_which_everything_was_skipped_has_not_passed() -> None:
    with stub_engine() as stub, Room(url=stub.url, quick=True) as room:
        report = suite.run(room, target=stub.url, only=["rows.split-2"], accept=["rows"])
    assert not report.passed


def test_a_key_is_checked() -> None:
    assert checked(only=["contract.key"], key=KEY).passed


def test_a_failure_prints_both_outputs_and_how_to_repeat_it() -> None:
    with stub_engine(Fault(previous_every=5)) as stub, Room(url=stub.url, quick=True) as room:
        report = suite.run(room, target=stub.url, only=["slots.answers"], repeat=lambda name: f"again {name}")
    (wrong,) = report.failures
    assert wrong.expected != wrong.got
    for shown in (repr(wrong.expected), repr(wrong.got), "again slots.answers"):
        assert shown in report.table()


def test_an_unknown_check_is_refused_with_the_near_one() -> None:
    with pytest.raises(BadInput, match=r"did you mean 'slots\.answers'"):
        suite.select(["slots.answer"])


def test_ids_are_unique_and_every_check_says_what_it_proves() -> None:
    ids = [check.id for check in suite.CHECKS]
    assert len(ids) == len(set(ids))
    assert all(check.proves and check.rule for check in suite.CHECKS)
    assert {check.group for check in suite.CHECKS} == {
        "rows", "cut", "cache", "spec", "slots", "device", "contract",
    }  # fmt: skip
