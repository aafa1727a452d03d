"""`plan` and its sub-tasks as a user starts them: exit codes, one document on stdout, drawings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from errors import BadInput
from paths import ROOT
from presets.planner import sweep
from tests.makers import hollow, shapes
from tests.unit.test_planner_log import FITTING, REAL
from tests.unit.test_planner_tables import asked


def inv(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a task in a process of its own."""
    argv = [sys.executable, "-P", "-m", "invoke", "--search-root", str(ROOT), *words]
    env = {**os.environ, "HALOFORGE_HOME": str(home)}
    return subprocess.run(argv, capture_output=True, text=True, env=env, cwd=home, timeout=120, check=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hollow model with a vocabulary of true length."""
    place = tmp_path_factory.mktemp("model")
    return hollow.write(shapes.MODELS["qwen35-27b-mtp"](), place / "m.gguf")


def test_plan_prints_one_document_and_its_verdict_is_the_exit_code(model: Path, tmp_path: Path) -> None:
    for free, verdict, code in (("100", "fits", 0), ("20", "too-big", 4)):
        done = inv(
            "plan", "--gguf", str(model), "--set", "ctx=32768", "--free", free, "--json", home=tmp_path
        )
        assert done.returncode == code, done.stderr
        assert json.loads(done.stdout)["verdict"] == verdict
    shown = inv("plan", "--gguf", str(model), "--set", "ctx=32768", "--free", "20", home=tmp_path)
    assert shown.returncode == 4
    assert "too big" in shown.stdout
    assert "advice" in shown.stdout


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--gguf", "/no/such.gguf"), 2, "cannot read /no/such.gguf"),
        (("--preset", "demo", "--set", "contex=1"), 2, "did you mean 'ctx'"),
        (("--preset", "demo", "--free", "lots"), 2, "not a number of GiB"),
        (("--gguf", __file__), 2, "is not a GGUF file"),
    ],
)
def test_mistakes_are_one_clear_error(words: tuple[str, ...], code: int, text: str, tmp_path: Path) -> None:
    done = inv("plan", *words, home=tmp_path)
    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_tables_and_comparison(model: Path, tmp_path: Path) -> None:
    limits = inv("plan.limits", "--free", "106.5", "--json", "--csv", "limits.csv", home=tmp_path)
    assert len(json.loads(limits.stdout)) == 50
    assert (tmp_path / "limits.csv").read_text().count("\n") == 51
    words = ("--gguf", str(model), "--set", "ctx=32768", "--set", "slots=1")
    swept = inv("plan.sweep", "--over", "ub", *words, "--json", home=tmp_path)
    assert [point["value"] for point in json.loads(swept.stdout)] == [64, 128, 256, 512, 1024, 2048]
    (tmp_path / "server.log").write_text(FITTING + REAL)
    logged = ["--gguf", str(model), "--set", "ctx=65536", "--set", "slots=1"]
    logged += ["--set", "cache_type_k=q8_0", "--set", "cache_type_v=q8_0"]
    held = inv("plan.compare", "--log", "server.log", *logged, "--json", home=tmp_path)
    lines = {line["name"]: line for line in json.loads(held.stdout)}
    assert lines["KV caches"]["holds"] is True
    assert held.returncode == 1, "another quant: the weights do not hold"
    (tmp_path / "quiet.log").write_text("main: model loaded\n")
    quiet = inv("plan.compare", "--log", "quiet.log", *logged, home=tmp_path)
    assert quiet.returncode == 0
    assert "not measured" in quiet.stdout


@pytest.mark.parametrize(("name", "magic"), [("a.svg", b"<?xml"), ("a.png", b"\x89PNG")])
def test_a_sweep_is_drawn(tmp_path: Path, name: str, magic: bytes) -> None:
    points = sweep.over(asked(ctx=32768, slots=1), "np")
    drawn = sweep.plot(points, "np", tmp_path / name, "slots")
    assert drawn.read_bytes().startswith(magic)
    with pytest.raises(BadInput, match=r"\.svg or \.png"):
        sweep.plot(points, "np", tmp_path / "a.pdf", "slots")


def test_a_remote_header_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of a file on the Hub: a few megabytes move, and the plan is that of the file."""
    from presets.planner import ask
    from tests.contract.hub_server import HubServer

    revision = "ab" * 20
    real = hollow.write(shapes.MODELS["qwen3-8b"](), tmp_path / "model.gguf")
    with HubServer() as hub:
        hub.add("org/repo", revision, "big/model.gguf", real)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HALOFORGE_HOME", str(tmp_path / "home"))
        address = f"{hub.url}/org/repo/resolve/{revision}/big/model.gguf?download=true"
        far, origin = ask.answer(ask.Request(gguf=address, settings=("ctx=8192",), free_gib=64))
    near, _ = ask.answer(ask.Request(gguf=str(real), settings=("ctx=8192",), free_gib=64))
    assert far.terms == near.terms
    assert origin.endswith("model.gguf")
    assert sum(path.stat().st_blocks * 512 for path in (tmp_path / "home").rglob("*.gguf")) < 8 << 20
