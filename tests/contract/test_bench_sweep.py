"""Sweeps over a real process that streams: what dies, what resumes, what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import ceiling, compare, load, mtp, slots, sweep, ubatch
from bench.results import Identity, Store
from bench.servers import Files, Program, Remote, refuse_other_model, served, wait_healthy
from bench.sweep import Live, Outcome, Step, Subject
from errors import BadInput, CheckFailed
from presets import schema
from presets.schema import Preset

PRESET: dict[str, Any] = {
    "purpose": "a stub", "flavour": "cpu", "ctx": 4096, "slots": 4, "batch": 512, "ubatch": 512,
    "guard_gib": 0, "alias": "stub",
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Model files that the stub never opens."""
    model, head = tmp_path / "model.gguf", tmp_path / "head.gguf"
    model.write_bytes(b"x" * 5000)
    head.write_bytes(b"y" * 100)
    return Files(model=model, draft=head)


def subject(files: Files, *stub: str, drafts: bool = False, command: tuple[str, ...] = ()) -> Subject:
    """A subject whose servers are stubs with these arguments."""
    heads = {"spec_type": "draft-mtp", "head": str(files.draft)} if drafts else {}
    preset: Preset = schema.parse({**PRESET, **heads, "model": str(files.model)}, name="stub")
    started = command or (sys.executable, "-m", "bench.stub", *stub)
    launcher = Program(command=started, logs=files.model.parent / "logs")
    return Subject(preset=preset, files=files, launcher=launcher, identity=Identity(subject="stub"))


def ask(live: Live) -> Outcome:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}
    answer = live.fire([load.Ask(name="one", body=body)]).answers[0]
    return Outcome(measured={"tokens": float(answer.tokens)}, samples=[{"tokens": answer.tokens}])


def test_slots_with_and_without_drafting(files: Files, tmp_path: Path) -> None:
    mine = subject(files, "--accept=0.6", drafts=True)
    points = sweep.run(
        "slots",
        slots.steps(mine, quick=True, levels=(1, 3)),
        mine,
        store=Store("slots", at=tmp_path),
        quick=True,
    )
    assert [point.status for point in points] == ["ok"] * 8
    assert {point.settings["speculation"] for point in points} == {"off", "draft-mtp"}
    three = [point for point in points if point.settings["users"] == 3 and point.settings["load"] == "short"]
    assert [len(point.samples) for point in three] == [6, 6], "three users, two rounds, one sample each"
    assert three[0].measured["acceptance"] == pytest.approx(0.6, abs=0.02)
    assert three[0].measured["clean_share"] == 0, "a stub repeats no code word"
    assert three[0].identity.build == "stub"


def test_a_server_that_dies_fails_its_point_alone(files: Files, tmp_path: Path) -> None:
    """The stub ends in the middle of its second answer; the points after it get a new server."""
    store = Store("x", at=tmp_path)
    steps = [Step(settings={"number": number}, measure=ask) for number in range(4)]
    points = sweep.run("x", steps, subject(files, "--die-after=2"), store=store)
    assert [point.status for point in points] == ["ok", "failed", "ok", "failed"]
    assert "died while it answered" in (points[1].reason or "")
    assert "139" in (points[1].reason or "")

    again = sweep.run("x", steps, subject(files), store=store)
    assert [point.status for point in again] == ["ok"] * 4
    assert [point.time for point in again if point.settings["number"] in (0, 2)] == [
        points[0].time,
        points[2].time,
    ], "what was measured is kept"
    assert len(store.path.read_text().splitlines()) == 6, "only what had failed was measured again"


def test_a_server_that_does_not_start_fails_its_points_with_its_own_words(
    files: Files, tmp_path: Path
) -> None:
    words = "0.00.041.492 E srv load_model: failed to load model, 'x'"
    broken = subject(files, command=("/bin/sh", "-c", f'echo "{words}"; echo bye; exit 1'))
    steps = [Step(settings={"number": 1}, measure=ask), Step(settings={"number": 2}, measure=ask)]
    points = sweep.run("x", steps, broken, store=Store("x", at=tmp_path))
    assert [point.status for point in points] == ["failed", "failed"]
    assert all("ended with 1" in (point.reason or "") for point in points)
    assert all("failed to load model" in (point.reason or "") for point in points)


def test_a_setting_that_contradicts_the_preset_fails_its_point_alone(files: Files, tmp_path: Path) -> None:
    steps = [
        Step(settings={"ubatch": 4096}, changes={"ubatch": 4096}, measure=ask),
        Step(settings={"ubatch": 64}, changes={"ubatch": 64}, measure=ask),
    ]
    points = sweep.run("x", steps, subject(files), store=Store("x", at=tmp_path))
    assert [point.status for point in points] == ["failed", "ok"]
    assert "larger than batch" in (points[0].reason or "")


def test_each_point_starts_the_server_its_settings_name(files: Files, tmp_path: Path) -> None:
    """The arguments that arrive in the process: the changed setting, another head where one is named."""
    script = 'echo "ARGV $*"; exec "$0" -m bench.stub "$@"'
    echo = ("/bin/sh", "-c", script, sys.executable)
    mine = subject(files, drafts=True, command=echo)
    other = tmp_path / "other-head.gguf"
    other.write_bytes(b"z")
    seen: list[str] = []

    def remember(live: Live) -> Outcome:
        seen.append(next(line for line in live.server.log().splitlines() if line.startswith("ARGV")))
        return Outcome()

    steps = [
        Step(settings={"n": 1}, changes={"draft_n_max": 1, "ubatch": 64}, measure=remember),
        Step(settings={"n": 2}, changes={"spec_type": (), "head": None}, measure=remember),
        Step(settings={"n": 3}, draft=other, measure=remember),
        Step(settings={"n": 4}, changes={"batch": 64, "ubatch": 512}, unchecked=True, measure=remember),
    ]
    points = sweep.run("x", steps, mine, store=Store("x", at=tmp_path))
    assert [point.reason for point in points] == [None] * 4
    assert "--spec-draft-n-max 1 " in seen[0]
    assert "--ubatch-size 64 " in seen[0]
    assert "head.gguf" in seen[0]
    assert "--spec-type" not in seen[1]
    assert "head.gguf" not in seen[1]
    assert f"--model-draft {other}" in seen[2]
    assert "--batch-size 64 --ubatch-size 512 " in seen[3]


def test_no_server_is_left_running(files: Files, tmp_path: Path) -> None:
    started: list[Any] = []
    mine = subject(files)
    with sweep.up(mine, mine.changed({})) as (live, _):
        started.append(live.server)
        assert live.server.ended() is None
    assert started[0].ended() is not None
    with contextlib.suppress(KeyboardInterrupt), sweep.up(mine, mine.changed({})) as (live, _):
        started.append(live.server)
        raise KeyboardInterrupt
    assert started[1].ended() is not None


def test_the_guard_ends_the_server_and_says_so(files: Files, tmp_path: Path) -> None:
    """A threshold above what any machine has trips at the first look."""
    mine = subject(files, "--rate=5")
    assert mine.preset is not None
    greedy = mine.preset.model_copy(update={"guard_gib": 1e6})
    mine = Subject(preset=greedy, files=files, launcher=mine.launcher, identity=mine.identity)
    points = sweep.run("x", [Step(settings={}, measure=ask)], mine, store=Store("x", at=tmp_path))
    assert points[0].status == "failed"
    assert "the guard ended the server: MemAvailable fell to" in (points[0].reason or "")


def test_what_fails_before_a_start_fails_that_point_alone(files: Files, tmp_path: Path) -> None:
    def impossible(_: Preset) -> Outcome:
        raise sweep.PointFailed("the files stayed in the page cache")

    def prepared(_: Preset) -> Outcome:
        return Outcome(measured={"resident_share": 0.0})

    steps = [
        Step(settings={"n": 1}, alone=impossible, measure=ask),
        Step(settings={"n": 2}, alone=prepared, measure=ask),
    ]
    points = sweep.run("x", steps, subject(files), store=Store("x", at=tmp_path))
    assert [point.status for point in points] == ["failed", "ok"]
    assert points[1].measured["resident_share"] == 0


def test_what_the_planner_says_does_not_fit_is_not_started(files: Files, tmp_path: Path) -> None:
    mine = subject(files, command=("/bin/sh", "-c", f"touch {tmp_path}/started"))
    huge = sweep.Prediction(sizes={"total_bytes": 2.0**60}, certainty={})
    mine = dataclasses.replace(mine, predict=lambda preset: huge)
    points = sweep.run("x", [Step(settings={}, measure=ask)], mine, store=Store("x", at=tmp_path))
    assert "does not fit" in (points[0].reason or "")
    assert "planned 1073741824.0 GiB" in (points[0].reason or "")
    assert not (tmp_path / "started").exists()


@pytest.fixture
def url() -> Iterator[str]:
    with ceiling.stub("--alias=right") as where:
        wait_healthy(Remote(url=where))
        yield where


def test_another_model_behind_the_url_is_refused(url: str) -> None:
    says = served(Remote(url=url))
    refuse_other_model(says, ["Right"], url)
    with pytest.raises(BadInput, match="wrong model"):
        refuse_other_model(says, ["wrong", "other"], url)


def test_a_running_server_is_measured_as_it_is(url: str, tmp_path: Path) -> None:
    mine = Subject(
        preset=None, files=None, launcher=None, identity=Identity(subject="right", url=url), url=url
    )
    store = Store("x", at=tmp_path)
    assert [p.status for p in sweep.run("x", ubatch.steps(mine, quick=True), mine, store=store)] == ["ok"]
    four = slots.steps(mine, quick=True, levels=(4,))
    nine = slots.steps(mine, quick=True, levels=(9,))
    points = sweep.run("x", [*four, *nine], mine, store=store)
    assert [point.status for point in points] == ["ok", "ok", "failed", "failed"]
    assert "4 slots for 9 users" in (points[2].reason or "")
    with pytest.raises(BadInput, match="keeps its settings"):
        mtp.steps(mine, quick=True)
    assert served(Remote(url=url)).model == "right", "it is left running"


def test_what_is_no_llama_server_is_refused(url: str) -> None:
    from bench.servers import ServerDied

    with pytest.raises(ServerDied, match="404"):
        served(Remote(url=url + "/somewhere"))
    with pytest.raises(ServerDied, match="did not answer"):
        served(Remote(url="http://127.0.0.1:1"))
    with pytest.raises(BadInput, match="URL"):
        served(Remote(url="ftp://127.0.0.1"))


def test_the_slower_side_of_a_comparison_is_found(files: Files, tmp_path: Path) -> None:
    """B states three quarters of A's decode speed, whatever this machine is busy with."""
    a, b = subject(files, "--claim=200"), subject(files, "--claim=150")
    store = Store("compare", at=tmp_path)
    found = compare.compare(a, b, rounds=3, quick=True, store=store)
    assert "decode_tps" in found.regressions
    assert found.ratios["decode_tps"].value == pytest.approx(0.75)
    assert found.to_json()["ratios"]["decode_tps"]["pairs"] == 3
    assert [point.settings["side"] for point in store.points()] == ["A", "B"]
    assert all(len(point.samples) == 3 for point in store.points())
    assert compare.compare(a, a, rounds=3, quick=True, store=store).ratios["decode_tps"].verdict == "same"


def test_a_side_that_cannot_be_measured_ends_the_comparison(files: Files, tmp_path: Path) -> None:
    broken = subject(files, command=("/bin/false",))
    with pytest.raises(CheckFailed, match=r"B .* could not be measured"):
        compare.compare(subject(files), broken, rounds=3, quick=True, store=Store("compare", at=tmp_path))
    with pytest.raises(BadInput, match="rounds"):
        compare.compare(broken, broken, rounds=2)


def test_the_generator_loses_no_token_of_many_fast_streams() -> None:
    with ceiling.stub() as where:
        body = {"prompt": "x", "n_predict": 3000}
        done = load.fire(where, [load.Ask(name=str(n), body=body, chat=False) for n in range(16)])
    assert done.errors == ()
    assert [len(answer.stamps) for answer in done.answers] == [3000] * 16
    assert all(list(answer.stamps) == sorted(answer.stamps) for answer in done.answers)


def test_the_ceiling_is_reported_per_stream_count() -> None:
    found = ceiling.measure((1, 4), rate=400, tokens=40)
    assert [(one.streams, one.tokens) for one in found] == [(1, 40), (4, 160)]
    assert all(one.cpu_s > 0 for one in found)
