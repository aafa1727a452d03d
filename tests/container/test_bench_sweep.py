"""Sweeps on a real llama-server in a container, with tiny models: the engine's own figures come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import command
import paths
from bench import cache, containers, host, load, load_time, mtp, run, sweep, ubatch
from bench.results import Store
from bench.run import Choice
from bench.sweep import Live, Outcome, Step, Subject
from errors import BadInput
from images.records import ImageRecord
from tests.makers import tiny


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny trunk with recurrent state, and its draft head."""
    folder = tmp_path_factory.mktemp("pair")
    return tiny.trunk(folder / "trunk.gguf"), tiny.head(folder / "head.gguf")


@pytest.fixture(scope="module")
def subject(cpu_image: ImageRecord, pair: tuple[Path, Path]) -> Subject:
    return run.pick(Choice(gguf=str(pair[0]), draft=str(pair[1]), image=cpu_image.ref))


def containers_of(owner: int) -> list[str]:
    """Containers that the bench of this process started; others may be at work beside it."""
    return command.run(["docker", "ps", "-aq", "--filter", f"label={containers.LABEL}={owner}"]).out.split()


def test_ubatch_sets_the_buffer_and_a_smaller_batch_clamps_it(subject: Subject, tmp_path: Path) -> None:
    steps = ubatch.steps(subject, quick=True, ubatches=(256, 64))
    points = sweep.run("ubatch", steps, subject, store=Store("ubatch", at=tmp_path), quick=True)
    assert [(point.status, point.reason) for point in points] == [("ok", None)] * 3
    wide, narrow, clamped = (point.measured["compute_host_bytes"] for point in points)
    assert wide > narrow > 0
    assert clamped == narrow, "-b 64 -ub 512 reserves for 64"
    sources = [sample["source"] for sample in points[0].samples]
    assert sources.count("server") == 2
    assert sources.count("llama-bench") == 8, "prompt and decode, two depths, two repetitions"
    assert {sample["prompt_n"] for sample in points[0].samples if sample["source"] == "server"} == {512}
    assert points[0].identity.digest
    assert points[0].identity.pin
    assert (points[0].identity.build or "").startswith("b11434")


def test_what_the_planner_calls_exact_is_what_the_engine_logs(subject: Subject, tmp_path: Path) -> None:
    """Cache and recurrent state, target and draft, to the 0.01 MiB per line that the log prints."""
    steps = [
        Step(settings={"slots": slots, "n_max": length}, measure=lambda live: Outcome(),
             changes={"slots": slots, "draft_n_max": length, "ctx": 2048 * slots})
        for slots, length in ((1, 3), (2, 1))
    ]  # fmt: skip
    for point in sweep.run("x", steps, subject, store=Store("x", at=tmp_path)):
        assert point.reason is None
        for name in ("kv_bytes", "state_bytes"):
            assert point.certainty[name] == "exact"
            assert abs(point.predicted[name] - point.measured[name]) <= 0.05 * 2**20, name


def test_checkpoints_are_what_a_recurrent_model_goes_back_by(subject: Subject, tmp_path: Path) -> None:
    """Going on needs none; a few tokens back need one, a piece of the document needs several."""
    every = cache.steps(subject, quick=True, checkpoints=(0, 32))
    steps = [step for step in every if "checkpoints" in step.settings]
    points = sweep.run("cache", steps, subject, store=Store("cache", at=tmp_path), quick=True)
    found = {(point.settings["checkpoints"], point.settings["talk"]): point.measured for point in points}
    assert found[(0, "one session")]["hit_share"] > 0.8
    assert found[(0, "shortened answers")]["hit_share"] == 0
    assert found[(32, "shortened answers")]["hit_share"] > 0.8
    assert found[(0, "edited history")]["edited_hit_share"] == 0
    assert found[(32, "edited history")]["edited_hit_share"] > 0.3


def test_dice_show_the_curve_of_a_head(subject: Subject, tmp_path: Path) -> None:
    """Synthetic acceptance of 0.7: the engine accepts 0.7, 0.7^2, ... by place."""
    steps = [
        step for step in mtp.steps(subject, quick=True, synthetic=0.7) if step.settings["kind"] == "code"
    ]
    points = sweep.run("mtp", steps, subject, store=Store("mtp", at=tmp_path), quick=True)
    assert [point.settings["n_max"] for point in points] == [0, 1, 3]
    assert "acceptance" not in points[0].measured
    one, three = (point.measured["acceptance"] for point in points[1:])
    assert 0.45 < one < 0.95
    assert three < one
    assert mtp.propose(points) is not None


def test_cold_and_warm_starts_differ_in_what_lies_in_the_page_cache(subject: Subject, tmp_path: Path) -> None:
    points = sweep.run(
        "load", load_time.steps(subject, quick=True), subject, store=Store("load", at=tmp_path), quick=True
    )
    assert [point.settings["files"] for point in points] == ["cold", "warm"]
    warm = points[1]
    assert warm.reason is None
    assert warm.measured["resident_share"] > load_time.WARM
    cold = points[0]
    if cold.status == "ok":
        assert cold.measured["resident_share"] <= load_time.COLD
    else:
        assert "stayed in the page cache" in (cold.reason or ""), "a file system in memory drops nothing"
    assert containers_of(os.getpid()) == []


def test_a_container_that_is_killed_fails_its_point_alone(subject: Subject, tmp_path: Path) -> None:
    def killed(live: Live) -> Outcome:
        live.server.kill()
        return ask(live)

    def ask(live: Live) -> Outcome:
        live.fire([load.Ask(name="a", body={"prompt": "hi", "n_predict": 4}, chat=False)])
        return Outcome()

    steps = [Step(settings={"number": number}, measure=killed if number == 1 else ask) for number in range(3)]
    points = sweep.run("x", steps, subject, store=Store("x", at=tmp_path))
    assert [point.status for point in points] == ["ok", "failed", "ok"]
    assert "137" in (points[1].reason or "")


def test_a_setting_the_engine_refuses_fails_with_its_own_words(subject: Subject, tmp_path: Path) -> None:
    steps = [Step(settings={}, changes={"extra_args": ["--bogus-flag"]}, measure=lambda live: Outcome())]
    points = sweep.run("x", steps, subject, store=Store("x", at=tmp_path))
    assert "--bogus-flag" in (points[0].reason or "")
    assert containers_of(os.getpid()) == []


def test_a_killed_bench_leaves_its_container_to_the_next_one(
    subject: Subject, cpu_image: ImageRecord, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    arguments = ["bench.slots", "--quick", "--image", cpu_image.ref, "--gguf", str(pair[0])]
    environment = {**os.environ, "HALOFORGE_HOME": str(tmp_path / "home")}
    first = subprocess.Popen(
        [sys.executable, "-m", "invoke", *arguments], cwd=paths.ROOT, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert host.wait_until(lambda: len(containers_of(first.pid)) == 1, timeout_s=120)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert len(containers_of(first.pid)) == 1
    points = sweep.run(
        "x", [Step(settings={}, measure=lambda live: Outcome())], subject, store=Store("x", at=tmp_path)
    )
    assert points[0].reason is None
    assert containers_of(first.pid) == []


def test_what_cannot_be_measured_is_refused_before_anything_starts(
    cpu_image: ImageRecord, pair: tuple[Path, Path]
) -> None:
    with pytest.raises(BadInput, match="no image"):
        run.pick(Choice(gguf=str(pair[0]), image="haloforge/none:none"))
    with pytest.raises(BadInput, match="no file"):
        run.pick(Choice(gguf=str(pair[0].with_name("none.gguf")), image=cpu_image.ref))
    alone = run.pick(Choice(gguf=str(pair[0]), image=cpu_image.ref))
    with pytest.raises(BadInput, match="drafts nothing"):
        mtp.steps(alone, quick=True)
