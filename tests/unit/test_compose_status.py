"""The status, from what `docker inspect`, /metrics and /proc say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compose import container, proof, status
from compose.record import Deployment, Journal, Switch, advanced
from compose.status import Memory, Status

RUNNING: dict[str, Any] = {
    "Id": "aa", "RestartCount": 0, "Image": "sha256:ab",
    "State": {"Status": "running", "Running": True, "ExitCode": 0, "OOMKilled": False, "Pid": 7,
              "StartedAt": "2026-11-30T10:00:00.123456789Z"},
}  # fmt: skip


def inspected(*, restarts: int = 0, **state: Any) -> container.State:
    return container.parse({**RUNNING, "RestartCount": restarts, "State": {**RUNNING["State"], **state}})


def deployment(**changes: Any) -> Deployment:
    made = {
        "name": "tiny-1", "preset": "tiny", "project": "p", "container": "c", "url": "http://127.0.0.1:1",
        "bind": "127.0.0.1", "port": 1, "image": "sha256:ab", "image_ref": "r", "engine": "llama.cpp",
        "identity": "i", "flavour": "cpu", "build": "b11434", "alias": "tiny", "model_file": "m.gguf",
        "slots": 1,
        "slot_context": 4096, "drafting": False, "load_mode": "mmap", "lazy_mode": "on", "has_table": True,
        "answer": None, "guard_gib": 1, "start_seconds": 60, "planned_bytes": 1, "terms": (), "argv": (),
        "has_key": False,
    }  # fmt: skip
    return Deployment.model_validate({**made, **changes})


def test_a_probe_that_cannot_run_is_told_from_a_server_that_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(container, "log", lambda name, *, tail: ["srv: listening"])
    missing = {
        "Status": "unhealthy",
        "Log": [{"ExitCode": -1, "Output": 'exec: "curl": executable file not found'}],
    }
    assert status.problem(deployment(), inspected(Health=missing)).startswith(
        "the health probe cannot run: exec"
    )
    loading = {"Status": "unhealthy", "Log": [{"ExitCode": 1, "Output": "HTTP/1.1 503 Service Unavailable"}]}
    assert status.problem(deployment(), inspected(Health=loading)) == (
        "the health probe says: HTTP/1.1 503 Service Unavailable"
    )
    assert status.problem(deployment(), inspected()) == ""
    assert "gone" in status.problem(deployment(), None)


def test_a_guard_that_waits_is_told_before_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "haloforge-guard: waiting for memory: 900 MiB available, 1631 MiB needed"
    monkeypatch.setattr(container, "log", lambda name, *, tail: [line])
    late = {"Status": "unhealthy", "Log": [{"ExitCode": 1, "Output": "connection refused"}]}
    told = status.problem(deployment(), inspected(Health=late))
    assert told == "the memory guard holds the server back: 900 MiB available, 1631 MiB needed"


def test_restarts_count_from_where_they_stood() -> None:
    assert not inspected(restarts=2).ended_since(2)
    assert inspected(restarts=3).ended_since(2)
    assert inspected(Running=False, Status="exited").ended_since(9)
    assert not inspected(Status="restarting").running


METRICS = """\
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed.
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 120
llamacpp:tokens_predicted_seconds_total 4
llamacpp:prompt_tokens_total 0
llamacpp:prompt_seconds_total 0
llamacpp:spec_decode_num_draft_tokens_total 30
llamacpp:spec_decode_num_accepted_tokens_total 24
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 10
llamacpp:predicted_tokens_seconds 1.5e+01
"""


def test_metrics_become_speeds_and_shares() -> None:
    metrics = status.parse_metrics(METRICS)
    assert status.ratio(metrics, "tokens_predicted_total", "tokens_predicted_seconds_total") == 30
    assert (
        status.ratio(metrics, "spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total")
        == 0.8
    )
    assert status.ratio(metrics, "prompt_tokens_total", "prompt_seconds_total") is None
    assert metrics["predicted_tokens_seconds"] == 15


def test_the_status_is_told_in_lines() -> None:
    memory = Memory(planned=2**30, resident=2**20, mapped=2**21, gtt=2**32, vram=0, available=2**34)
    found = Status(
        name="tiny-1", preset="tiny", url="u", container="c", image="i", state="running", health="healthy",
        ready=True, restarts=0, started="2026-11-30T10:00:00.1Z", problem="", memory=memory, slots=2, busy=1,
        slot_context=4096, prompt_tokens_per_second=None, tokens_per_second=30.04, tokens=12, acceptance=0.8,
    )  # fmt: skip
    text = "\n".join(status.lines(found))
    for words in (
        "running, health healthy, answers at u",
        "planned 1.0 GiB, now 1.0 MiB resident",
        "GTT 4.0 GiB",
        "1 of 2 busy, 4096 tokens each",
        "no tokens yet prompt, 30.0 tokens/s answer",
        "drafts kept: 80%",
    ):
        assert words in text  # fmt: skip
    gone = "\n".join(status.lines(replace(found, state="gone", health="", ready=False, started="")))
    assert "started" not in gone


def test_a_process_is_measured_without_its_page_cache(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(
        "VmRSS:\t 900 kB\nRssAnon:\t  100 kB\nRssFile:\t 750 kB\nRssShmem:\t 50 kB\n"
    )
    assert status.process_memory(7, tmp_path) == (150 * 1024, 750 * 1024)
    assert status.process_memory(8, tmp_path) == (0, 0)


BUFFERS = "0.00.1.2 I load_tensors:   CPU_Mapped model buffer size =    13.66 MiB"
PLAIN = "0.00.1.2 I load_tensors:          CPU model buffer size =    13.66 MiB"
LAZY = "0.00.1.2 I add: tensor per_layer_token_embd.weight (size = 27465 MiB) lazy read enabled"


@pytest.mark.parametrize(
    ("settings", "log", "fault"),
    [
        ({"lazy_mode": "on", "load_mode": "none"}, [PLAIN], "the n-gram table is resident"),
        ({"lazy_mode": "on", "load_mode": "none"}, [LAZY, BUFFERS], ""),
        ({"lazy_mode": "on", "has_table": False, "load_mode": "none"}, [PLAIN], ""),
        ({"lazy_mode": "off", "load_mode": "mmap"}, [LAZY, BUFFERS], "lazy_mode is off"),
        ({"lazy_mode": "off", "load_mode": "mmap"}, [PLAIN], "no buffer in the log is mapped"),
        ({"lazy_mode": "off", "load_mode": "none"}, [BUFFERS], "shows a mapped buffer"),
        ({"lazy_mode": "off", "load_mode": "none"}, ["0.00.1.2 I quiet"], "verbosity 4"),
        ({"lazy_mode": "off", "load_mode": "none"}, [PLAIN], ""),
    ],
)
def test_the_log_proves_how_weights_are_read(settings: dict[str, Any], log: list[str], fault: str) -> None:
    found = list(proof.faults(deployment(**settings), log))
    assert (len(found) == 1 and fault in found[0]) if fault else found == []


def test_the_journal_remembers_the_way_back() -> None:
    now = Journal()
    for name in ("a", "b", "c", "b"):
        now = advanced(now, Switch(old=now.current, new=name))
    assert (now.current, now.history) == ("b", ("a", "c"))
    back = advanced(now, Switch(old="b", new="c", back=True))
    assert (back.current, back.history) == ("c", ("a",))
    further = advanced(back, Switch(old="c", new="a", back=True))
    assert (further.current, further.history) == ("a", ())
    many = Journal(current="x0")
    for number in range(1, 9):
        many = advanced(many, Switch(old=many.current, new=f"x{number}"))
    assert many.history == ("x3", "x4", "x5", "x6", "x7")
