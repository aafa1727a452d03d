"""The tasks as they are typed: one JSON document, the right exit code, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import paths
from bench import ceiling
from tests.makers import tiny


def typed(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`invoke WORDS` with a home of its own."""
    return subprocess.run(
        [sys.executable, "-m", "invoke", *words], cwd=paths.ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "HALOFORGE_HOME": str(home)},
    )  # fmt: skip


def programs(folder: Path, *stub: str) -> Path:
    """A folder whose llama-server is the stub."""
    folder.mkdir()
    server = folder / "llama-server"
    words = " ".join(stub)
    server.write_text(
        f'#!/bin/sh\nPYTHONPATH="{paths.ROOT}" exec "{sys.executable}" -m bench.stub {words} "$@"\n'
    )
    server.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.dense(tmp_path_factory.mktemp("model") / "dense.gguf")


def test_a_sweep_prints_one_document_and_is_resumed(model: Path, tmp_path: Path) -> None:
    fast = programs(tmp_path / "fast")
    words = ("bench.slots", "--quick", "--json", "--program", str(fast), "--gguf", str(model))
    first = typed(tmp_path, *words)
    assert first.returncode == 0, first.stderr
    points = json.loads(first.stdout)
    assert [point["status"] for point in points] == ["ok"] * 6
    assert points[0]["identity"]["model"] == "dense.gguf"
    assert points[0]["predicted"]["total_bytes"] > model.stat().st_size
    again = typed(tmp_path, *words)
    assert json.loads(again.stdout) == points
    assert again.stderr.count("is there from") == 6


def test_a_regression_ends_with_1(model: Path, tmp_path: Path) -> None:
    a, b = programs(tmp_path / "a", "--claim=100"), programs(tmp_path / "b", "--claim=80")
    done = typed(
        tmp_path, "bench.compare", f"program:{a}", f"program:{b}", "--gguf", str(model), "--quick",
        "--rounds", "3", "--json",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert "decode_tps" in found["regressions"]
    assert found["ratios"]["decode_tps"]["ratio"] == pytest.approx(0.8)


def test_a_sweep_with_a_failed_point_ends_with_1_and_says_which(model: Path, tmp_path: Path) -> None:
    dying = programs(tmp_path / "dying", "--die-after=1")
    done = typed(tmp_path, "bench.slots", "--quick", "--program", str(dying), "--gguf", str(model))
    assert done.returncode == 1
    assert done.stdout.count("failed:") == 6
    assert "139" in done.stdout


def test_the_report_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    done = typed(tmp_path, "bench.report", "--out", str(tmp_path / "here"), "--json")
    assert done.returncode == 0, done.stderr
    assert Path(json.loads(done.stdout)["page"]).read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("bench.slots", "--preset", "demmo"), 2, "'demo'"),
        (("bench.slots", "--url", "http://127.0.0.1:1"), 1, "nothing listens"),
        (("bench.slots", "--url", "ftp://127.0.0.1"), 2, "not a server's URL"),
        (("bench.slots", "--url", "http://127.0.0.1:1", "--set", "ubatch=1"), 2, "--set cannot be used"),
        (("bench.mtp", "--gguf", "MODEL", "--program", "PROGRAM"), 2, "drafts nothing"),
        (("bench.ubatch", "--gguf", "/none.gguf", "--program", "PROGRAM"), 2, "no file"),
        (("bench.ubatch", "--gguf", "MODEL", "--program", "/none"), 2, "no llama-server"),
        (("bench.ubatch", "--gguf", "MODEL", "--program", "PROGRAM", "--set", "ubatch"), 2, "has no value"),
        (("bench.ubatch", "--gguf", "MODEL", "--program", "PROGRAM", "--set", "ubach=1"), 2, "ubatch"),
        (("bench.compare", "a", "b", "--rounds", "1"), 2, "rounds"),
        (("bench.compare", "foo:a", "b"), 2, "nothing to compare"),
        (("bench.report", "--out", "/proc/none"), 3, "cannot write"),
    ],
)  # fmt: skip
def test_a_users_mistake_is_one_message(
    words: tuple[str, ...], code: int, told: str, model: Path, tmp_path: Path
) -> None:
    named = {"MODEL": str(model), "PROGRAM": str(programs(tmp_path / "programs"))}
    done = typed(tmp_path, *(named.get(word, word) for word in words))
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_another_model_behind_the_url_is_refused(tmp_path: Path) -> None:
    with ceiling.stub("--alias=somebody-elses") as url:
        done = typed(tmp_path, "bench.slots", "--quick", "--preset", "demo", "--url", url)
        assert done.returncode == 2, done.stderr
        assert "wrong model" in done.stderr
        assert "somebody-elses" in done.stderr
