"""Smoke and the suite on real servers: the image passes, and an image with planted faults does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from checks import smoke, suite
from checks.arrangement import Arrangement
from checks.launcher import Launcher, Model, Running
from checks.report import Outcome
from checks.room import Room
from tests import faults
from tests.makers import tiny, tokenizer
from tests.makers.weights import Echo

Start = Callable[[Model, Arrangement], Running]

PLANTED = ("indexer-foreign-pool", "restored-into-nothing", "draft-wrong-row")
"""Three faults that recompile little and touch different things, planted in one image."""

AGREEMENT = 0.7


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("checks")
    folder.chmod(0o755)
    made = faults.models(folder)
    trunk = tiny.trunk(folder / "inert.gguf", inert=True)
    head = tiny.head(folder / "inert-head.gguf", agreement=AGREEMENT)
    return {**made, "inert": Model(path=trunk, draft=head)}


def test_the_engine_passes_the_quick_suite(
    launch: Callable[[Model], Launcher], models: dict[str, Model]
) -> None:
    report = faults.check(launch, [models["pair"], models["dense"]])
    assert report.passed, report.table()
    passed = [result for result in report.results if result.outcome is Outcome.PASSED]
    assert len(passed) >= 30


def test_smoke_passes_a_server_that_is_what_was_promised(
    llama_server: Start, models: dict[str, Model]
) -> None:
    running = llama_server(models["inert"], Arrangement(slots=2, context=2048, drafting=True))
    promised = smoke.Expectation(
        model_file="inert.gguf", slots=2, slot_context=1024, build="b11434", drafting=True, min_acceptance=0.6
    )
    report = smoke.run(running.url, expect=promised)
    assert report.passed, report.table()


def test_smoke_names_another_context_than_promised(llama_server: Start, models: dict[str, Model]) -> None:
    running = llama_server(models["dense"], Arrangement(slots=2, context=1024))
    report = smoke.run(running.url, expect=smoke.Expectation(slots=2, slot_context=1024))
    assert [result.id for result in report.failures] == ["props"]
    assert report.failures[0].got == "slot_context=512"


def test_a_head_is_accepted_as_often_as_it_was_made_to_be(
    llama_server: Start, models: dict[str, Model]
) -> None:
    running = llama_server(models["inert"], Arrangement(drafting=True, draft_max=3))
    answer = running.client().complete("hello", 600)
    width = tiny.Qwen4Exp().width
    expected = Echo(tokenizer.vocabulary(512), width, seed=1).acceptance(AGREEMENT, 3)
    assert answer.accepted / answer.drafted == pytest.approx(expected, abs=0.05)


def test_the_openai_client_works(llama_server: Start, models: dict[str, Model]) -> None:
    running = llama_server(models["dense"], Arrangement(key=True))
    client = openai.OpenAI(base_url=f"{running.url}/v1", api_key=running.key, max_retries=0)
    assert len(client.models.list().data) == 1
    create = client.chat.completions.create
    hello = ChatCompletionUserMessageParam(role="user", content="hello")
    whole = create(model="any", messages=[hello], max_tokens=12, temperature=0)
    pieces = list(create(model="any", messages=[hello], max_tokens=12, temperature=0, stream=True))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    assert whole.choices[0].message.content == text
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="wrong", max_retries=0).models.list()


def test_three_planted_faults_are_caught_each_by_its_check(models: dict[str, Model]) -> None:
    """One image with three faults: their checks fail, and checks of other things do not."""
    from checks.launcher import ImageLauncher
    from images import build, flavours
    from patches import engines, tree

    known = {fault.id: fault.caught_by for fault in faults.known()}
    must_fail = {known[name] for name in PLANTED}
    must_pass = {"cut.ubatch-64", "cache.continued", "contract.schema", "spec.active"}
    image = build.build(flavours.load("cpu"), tree.patched(engines.load(), faults=PLANTED))
    with Room(launcher=ImageLauncher(image.id, models["pair"]), quick=True) as room:
        report = suite.run(room, target=image.ref, only=must_fail | must_pass)
    assert {result.id for result in report.failures} == must_fail, report.table()


@pytest.mark.faults
def test_every_fault_is_caught(tmp_path: Path) -> None:
    """The whole table, as `./inv check.faults` prints it: an hour."""
    table = faults.run(runs=3, clean=3)
    faults.write(table, tmp_path / "faults.md")
    assert table.good, json.dumps(table.to_json(), indent=1)
