"""What a user types wrong, or a host lacks, ends in one clear error and exit code, never in a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import paths

PRESET = "purpose: p\nflavour: cpu\nmodel: smollm2-135m-instruct\nquant: Q4_1\nctx: 4096\n"


def inv(*words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "invoke", "--search-root", paths.ROOT, *words],
        env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HALOFORGE_HOME": str(tmp_path / "home")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PRESET + "ubatchs: 64\n", "did you mean 'ubatch'?"),
        (PRESET + "ubatch: 010\n", "write 10"),
        (PRESET.replace("Q4_1", "Q4_7"), "Q4_1"),
        (PRESET.replace("smollm2", "smolm2"), "smollm2-135m-instruct"),
        (PRESET + "engine: lama.cpp\n", "llama.cpp"),
        (PRESET + "\tx: 1\n", "tab"),
    ],
)
def test_a_wrong_preset_is_bad_input(text: str, words: str, tmp_path: Path, home: dict[str, str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    done = inv("render", "--preset", str(path), env=home)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert done.stderr.startswith("error: ") or "\nerror: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["deploy", "--preset", "qualty"], 2, "did you mean 'quality'?"),
        (["deploy", "--preset", "demo", "--set", "slots"], 2, "--set slots=VALUE"),
        (["deploy", "--preset", "demo", "--set", "slot=2"], 2, "did you mean 'slots'?"),
        (["render", "--preset", "demo", "--target", "quadlets"], 2, "did you mean 'quadlet'?"),
        (["presets.show", "dem"], 2, "did you mean 'demo'?"),
        (["rollback"], 2, "no earlier deployment"),
        (["deploy", "--presett", "demo"], 2, "./inv --help deploy"),
        (["deplo"], 2, "./inv --list"),
        (["deploy", "--jobs", "two"], 2, "'two'"),
        (["presets.show"], 2, "./inv --help presets.show"),
        (["logs"], 2, "nothing is deployed"),
    ],
)
def test_a_wrong_word_is_bad_input(words: list[str], code: int, told: str, home: dict[str, str]) -> None:
    done = inv(*words, env=home)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert told in done.stderr


@pytest.mark.parametrize("task", ["deploy", "rollback"])
def test_a_daemon_that_does_not_answer_is_told(task: str, tmp_path: Path, home: dict[str, str]) -> None:
    words = [task, "--preset", "demo"] if task == "deploy" else [task]
    if task == "rollback":
        _pretend_deployed(tmp_path / "home")
    done = inv(*words, env={**home, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
    assert "daemon" in done.stderr.lower()


def _pretend_deployed(home: Path) -> None:
    """A journal with a switch that was cut short, so that the daemon has to be asked."""
    from tests.unit.test_compose_status import deployment

    folder = home / "deployments" / "tiny-1"
    folder.mkdir(parents=True)
    (folder / "deployment.json").write_text(deployment().model_dump_json())
    (folder / "compose.yaml").write_text("services: {}\n")
    journal = {"current": "tiny-1", "history": [], "switch": {"old": None, "new": "tiny-1"}}
    (folder.parent / "journal.json").write_text(json.dumps(journal))


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for words in (["deploy", "--preset", "demo"], ["stop"]):
        done = inv(*words, env={"HALOFORGE_HOME": str(tmp_path / "file" / "home")})
        assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
        assert str(tmp_path / "file") in done.stderr


def test_damaged_records_are_told(tmp_path: Path, home: dict[str, str]) -> None:
    folder = tmp_path / "home" / "deployments"
    folder.mkdir(parents=True)
    (folder / "journal.json").write_text("{")
    for words in (["status"], ["rollback"], ["stop"]):
        done = inv(*words, env=home)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert "journal.json" in done.stderr


def test_json_is_one_document(home: dict[str, str]) -> None:
    listed = json.loads(inv("presets", "--json", env=home).stdout)
    assert {row["name"] for row in listed} >= {"demo", "quality", "team"}
    assert json.loads(inv("presets.show", "demo", "--json", env=home).stdout)["arguments"][0] == "--model"
    assert json.loads(inv("status", "--json", env=home).stdout) is None
    json.loads(inv("presets.schema", env=home).stdout)


def test_rendering_needs_nothing_built_and_nothing_fetched(tmp_path: Path, home: dict[str, str]) -> None:
    for target, file in (("compose", "compose.yaml"), ("quadlet", "haloforge-team.container")):
        done = inv(
            "render", "--preset", "team", "--target", target, "--out", str(tmp_path / target), env=home
        )
        assert done.returncode == 0, done.stderr
        assert "not here yet" in done.stderr
        assert "/model/" in (tmp_path / target / file).read_text()


@pytest.mark.parametrize("home", ["/proc/none", "FILE"])
def test_a_home_that_can_be_no_folder_is_told(home: str, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    done = inv("fetch", env={"HALOFORGE_HOME": str(place) if home == "FILE" else home})
    assert done.returncode == 3, done.stderr
    assert "HALOFORGE_HOME" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["--list"], ["--help", "deploy"], ["presets.schema"]])
def test_a_reader_that_has_seen_enough_is_no_traceback(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "invoke", "--search-root", paths.ROOT, *words],
            stdout=closed, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 141, done.stderr
    assert done.stderr == ""
