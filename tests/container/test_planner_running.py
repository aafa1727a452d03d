"""A plan beside servers that really run: every buffer they log, and the size of their checkpoints."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import command
import web
from images.records import ImageRecord
from presets import gguf
from presets.planner import CPU, Options, Plan, Question, assess, caches, compare, log, shape
from presets.planner.architecture import describe
from tests.makers import tiny
from tests.unit.planner_headers import B11434, PLENTY

PROMPT = "The quick brown fox jumps over the lazy dog. " * 20
WAIT_S = 60


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense model, a qwen4exp trunk with its head, and a qwen35 with an embedded one."""
    folder = tmp_path_factory.mktemp("models")
    tiny.dense(folder / "dense.gguf")
    tiny.trunk(folder / "trunk.gguf")
    tiny.head(folder / "head.gguf")
    tiny.qwen35(folder / "qwen35.gguf")
    return folder


@contextmanager
def server(image: ImageRecord, folder: Path, arguments: list[str]) -> Iterator[tuple[str, str]]:
    """A llama-server in a container; gives its address and the container's name."""
    name = f"haloforge-planned-{os.getpid()}"
    argv = ["docker", "run", "--detach", "--name", name, "--publish", "127.0.0.1::8080", "--user"]
    argv += [f"{os.getuid()}:{os.getgid()}", "--volume", f"{folder}:{folder}:ro", image.id]
    fixed = ["-t", "1", "--no-repack", "-lv", "4", "--host", "0.0.0.0", "--port", "8080", "--no-webui"]
    try:
        command.run([*argv, *arguments, *fixed])
        port = command.run(["docker", "port", name, "8080/tcp"]).out.strip().rsplit(":", 1)[1]
        url = f"http://127.0.0.1:{port}"
        wait(url, name)
        yield url, name
    finally:
        command.run(["docker", "rm", "--force", name], check=False)


def wait(url: str, name: str) -> None:
    session = web.session(local=True)
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        try:
            if session.get(f"{url}/health").status_code == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    pytest.fail(f"not healthy: {command.run(['docker', 'logs', '--tail', '20', name], check=False).err}")


def logged(name: str) -> log.Logged:
    done = command.run(["docker", "logs", name])
    return log.parse(done.out + done.err)


def planned(model: Path, draft: Path | None, options: Options) -> Plan:
    return assess(
        Question(
            header=gguf.read(model), draft=gguf.read(draft) if draft else None, options=options,
            traits=B11434, device=CPU, budget=PLENTY,
        )
    )  # fmt: skip


RUNS: dict[str, tuple[str, str | None, list[str], dict[str, Any]]] = {
    "dense": ("dense.gguf", None, [], {}),
    "dense-4-slots": ("dense.gguf", None, ["-np", "4", "-no-kvu"], {"slots": 4, "kv_unified": False}),
    "trunk": ("trunk.gguf", None, [], {}),
    "trunk-and-head": (
        "trunk.gguf", "head.gguf", ["--spec-type", "draft-mtp", "--spec-draft-n-max", "3"],
        {"spec_types": ("draft-mtp",), "draft_n_max": 3},
    ),
    "embedded-head": (
        "qwen35.gguf", None, ["--spec-type", "draft-mtp", "--spec-draft-n-max", "2"],
        {"spec_types": ("draft-mtp",), "draft_n_max": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("run", RUNS)
def test_what_runs_takes_what_was_planned(run: str, models: Path, cpu_image: ImageRecord) -> None:
    model, draft, words, given = RUNS[run]
    own: dict[str, Any] = {"ctx": 4096, "slots": 1, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    options = Options(**own | given)
    arguments = ["-m", str(models / model), "-c", "4096", "-ctk", "q8_0", "-ctv", "q8_0", *words]
    arguments += ["-md", str(models / draft)] if draft else []
    arguments += [] if "-np" in words else ["-np", "1"]
    plan = planned(models / model, models / draft if draft else None, options)
    with server(cpu_image, models, arguments) as (url, name):
        answer = web.session(local=True).post(
            f"{url}/completion", json={"prompt": PROMPT, "n_predict": 24, "temperature": 0}
        )
        assert answer.status_code == 200, answer.text
        found = logged(name)
    lines = {line.name: line for line in compare.lines(plan, found)}
    assert lines["KV caches"].holds is True, lines["KV caches"]
    if "recurrent state" in lines:
        assert lines["recurrent state"].holds is True, lines["recurrent state"]
    compute = lines["compute"]
    assert compute.logged is not None
    assert compute.logged <= compute.planned * 1.01 + 0.05, compute
    assert found.slot_context == plan.per_slot_context
    assert found.slots == plan.shape.slots
    held_by_checkpoints(models / model, options, found)


def held_by_checkpoints(model: Path, options: Options, found: log.Logged) -> None:
    """The sizes of checkpoints that the log names, against ours at the depths that it names."""
    arch = describe(gguf.read(model))
    sizes = shape(options, B11434, trained=arch.trained, rollback=True)
    one = caches.checkpoint(arch, sizes, options, B11434)
    if one is None:
        assert found.checkpoints_mib == ()
        return
    assert found.checkpoints, "a recurrent model makes checkpoints"
    for tokens, mib in found.checkpoints:
        assert mib == pytest.approx(one.bytes_at(tokens) / 2**20, abs=0.002), (
            tokens,
            json.dumps(one.__dict__),
        )
