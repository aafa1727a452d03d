"""Smoke against a stub server: it passes a sound one and names what is wrong with a faulty one."""

from __future__ import annotations

import socket
import xml.etree.ElementTree as ElementTree

import pytest

from checks.report import Outcome, Report
from checks.smoke import Expectation, MemoryTerm, run
from errors import BadInput
from tests.contract.stub_engine import KEY, Fault, stub_engine

PROMISE = Expectation(
    alias="stub", model_file="stub.gguf", slots=4, slot_context=4096, build="b11434", answer=r"\bParis\b"
)


def failed(report: Report) -> dict[str, str]:
    """Ids and reasons of the failures."""
    return {result.id: result.detail for result in report.failures}


def test_a_sound_server_passes() -> None:
    with stub_engine() as stub:
        report = run(stub.url, expect=PROMISE)
    assert report.passed, report.table()
    assert [result.id for result in report.results] == [
        "health", "props", "chat", "stream", "tokenize", "metrics", "after",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "check", "words"),
    [
        (Fault(wrong_city=True), "chat", "not the right one"),
        (Fault(wrong_city=True), "stream", "not the right one"),
        (Fault(cut_stream=True), "stream", "broke off"),
        (Fault(empty_every=1), "chat", "empty"),
        (Fault(lossy=True), "tokenize", "does not survive"),
        (Fault(still_metrics=True), "metrics", "does not move prompt_tokens_total"),
    ],
)
def test_a_fault_is_named(fault: Fault, check: str, words: str) -> None:
    with stub_engine(fault) as stub:
        report = run(stub.url, expect=PROMISE)
    assert not report.passed
    assert words in failed(report)[check]


@pytest.mark.parametrize(
    ("promise", "words"),
    [
        (Expectation(slots=1), "slots"),
        (Expectation(slot_context=8192), "slot_context"),
        (Expectation(build="b1143"), "build"),
        (Expectation(alias="other"), "alias"),
        (Expectation(model_file="other.gguf"), "model_file"),
    ],
)
def test_another_server_than_promised_is_seen(promise: Expectation, words: str) -> None:
    with stub_engine() as stub:
        report = run(stub.url, expect=promise)
    assert failed(report).keys() == {"props"}
    assert words in failed(report)["props"]


def test_a_server_that_is_healthy_but_closes_connections_fails_with_its_restarts() -> None:
    with stub_engine(Fault(closes=0.5)) as stub:
        expect = Expectation(answer="Paris", restarts=lambda: stub.starts - 1)
        report = run(stub.url, expect=expect, only=["health", "chat"])
    assert failed(report).keys() == {"chat"}
    assert "restarted" in failed(report)["chat"]
    assert "restart count 1" in failed(report)["chat"]


def test_dead_drafts_are_flagged() -> None:
    with stub_engine(Fault(drafts_kept=5)) as stub:
        report = run(stub.url, expect=Expectation(drafting=True), only=["draft"])
    assert "5 of 370" in failed(report)["draft"]


def test_useful_drafts_are_shown() -> None:
    with stub_engine(Fault(drafts_kept=200)) as stub:
        report = run(stub.url, expect=Expectation(drafting=True))
    assert report.passed, report.table()
    assert "200 of 370" in report.table()


@pytest.mark.parametrize(("promised", "drafts"), [(True, None), (False, 200)])
def test_drafting_otherwise_than_asked_for_fails(promised: bool, drafts: int | None) -> None:
    with stub_engine(Fault(drafts_kept=drafts)) as stub:
        report = run(stub.url, expect=Expectation(drafting=promised))
    assert failed(report).keys() == {"draft"}


@pytest.mark.parametrize(
    ("certainty", "logged", "good"),
    [
        ("exact", 100 * 2**20, True),
        ("exact", 100 * 2**20 + 2**17, False),
        ("exact", 99 * 2**20, False),
        ("bounded", 60 * 2**20, True),
        ("bounded", 101 * 2**20, False),
        ("measured", 108 * 2**20, True),
        ("measured", 111 * 2**20, False),
    ],
)
def test_memory_is_held_to_what_the_plan_promised(certainty: str, logged: int, good: bool) -> None:
    term = MemoryTerm(name="kv_cache", predicted=100 * 2**20, logged=logged, certainty=certainty)
    with stub_engine() as stub:
        report = run(stub.url, expect=Expectation(memory=(term,)))
    assert report.passed is good


def test_a_log_without_memory_lines_is_not_taken_for_zero() -> None:
    with stub_engine() as stub:
        report = run(stub.url, expect=Expectation(memory=()))
    assert "-lv 4" in failed(report)["memory"]


def test_a_key_is_needed_and_enough() -> None:
    with stub_engine(key=KEY) as stub:
        without, given = run(stub.url), run(stub.url, key=KEY)
    assert "--key-file" in failed(without)["props"]
    assert given.passed, given.table()


def test_no_server_at_all_ends_after_the_first_check() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        free = held.getsockname()[1]
    report = run(f"http://127.0.0.1:{free}")
    assert [result.id for result in report.results] == ["health"]
    assert not report.passed


def test_an_unknown_check_is_refused_with_the_near_one() -> None:
    with pytest.raises(BadInput, match="did you mean 'chat'"):
        run("http://127.0.0.1:1", only=["caht"])


def test_the_report_says_how_to_repeat_a_failure() -> None:
    with stub_engine(Fault(wrong_city=True)) as stub:
        report = run(stub.url, expect=PROMISE)
    wrong = next(result for result in report.results if result.id == "chat")
    assert wrong.outcome is Outcome.FAILED
    assert (wrong.expected, wrong.got) == (r"\bParis\b", "Lyon")
    assert wrong.repeat == f"./inv smoke --url {stub.url} --only chat"
    assert wrong.repeat in report.table()


def test_the_report_is_junit_too() -> None:
    with stub_engine(Fault(wrong_city=True)) as stub:
        report = run(stub.url, expect=PROMISE)
    suite = ElementTree.fromstring(report.junit())
    assert suite.get("tests") == "7"
    assert suite.get("failures") == "2"
    assert {case.get("name") for case in suite if case.find("failure") is not None} == {"chat", "stream"}
    assert report.to_json()["passed"] is False
