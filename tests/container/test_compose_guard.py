"""The guard in the image, against real memory: a hog, and a threshold near what is free."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compose.doctor_facts import MEMORY, MIB
from images.records import ImageRecord
from tests.container.memory import HOG_MIB, MARGIN_MIB, hog, until
from tests.makers import tiny


def docker(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=False, timeout=120)


def state(name: str, form: str) -> str:
    return docker("inspect", "-f", form, name).stdout.strip()


@pytest.fixture
def guarded(cpu_image: ImageRecord, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts a guarded llama-server with a tiny model; gives the container's name."""
    names: list[str] = []
    model = tmp_path / "tiny.gguf"
    tiny.dense(model)
    tmp_path.chmod(0o755)
    model.chmod(0o644)

    def start(below_mib: int, above_mib: int = 0, *options: str) -> str:
        name = f"haloforge-test-guard-{uuid.uuid4().hex[:8]}"
        names.append(name)
        started = docker(
            "run", "-d", "--name", name, "--read-only", "--cap-drop", "ALL", "--security-opt",
            "no-new-privileges", "-v", f"{tmp_path}:/models:ro", "--entrypoint", "/app/guard", *options,
            cpu_image.ref, "--stop-below-mib", str(below_mib), "--start-above-mib", str(above_mib), "--",
            "/app/llama-server", "-m", "/models/tiny.gguf", "-c", "256", "-np", "1", "-t", "1", "--no-warmup",
        )  # fmt: skip
        assert started.returncode == 0, started.stderr
        return name

    yield start
    for name in names:
        docker("rm", "-f", name)


def available_mib() -> int:
    return MEMORY.ask().available // MIB


def server_of(name: str) -> int:
    """The host's process id of the server: the only child of the container's process 1."""
    guard = state(name, "{{.State.Pid}}")
    (server,) = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
    assert Path(f"/proc/{server}/comm").read_text() == "llama-server\n"
    return int(server)


def log(name: str) -> str:
    done = docker("logs", name)
    return done.stdout + done.stderr


def listening(name: str) -> bool:
    return "listening on http" in log(name)


def test_the_server_is_stopped_when_memory_runs_out_and_comes_back_when_it_is_there(
    guarded: Callable[..., str],
) -> None:
    free = available_mib()
    name = guarded(free - MARGIN_MIB, free - MARGIN_MIB // 2, "--restart", "on-failure:5")
    until(lambda: listening(name), 60, "the server listens")
    assert state(name, "{{.RestartCount}}") == "0"

    with hog(HOG_MIB):
        until(
            lambda: "haloforge-guard: stopped the server: MemAvailable" in log(name), 30, "the guard stops it"
        )
        until(lambda: "haloforge-guard: waiting for memory" in log(name), 30, "the restart waits")
        assert log(name).count("listening on http") == 1

    until(lambda: log(name).count("listening on http") == 2, 60, "the server is back")
    assert state(name, "{{.RestartCount}}") == "1"


def test_being_stopped_has_an_exit_code_of_its_own(guarded: Callable[..., str]) -> None:
    name = guarded(available_mib() - MARGIN_MIB)
    until(lambda: listening(name), 60, "the server listens")
    with hog(HOG_MIB):
        until(lambda: state(name, "{{.State.Status}}") == "exited", 30, "it ends")
    assert state(name, "{{.State.ExitCode}} {{.State.OOMKilled}}") == "75 false"


def test_another_kill_is_told_apart(guarded: Callable[..., str]) -> None:
    name = guarded(1)
    until(lambda: listening(name), 60, "the server listens")
    os.kill(server_of(name), signal.SIGKILL)
    until(lambda: state(name, "{{.State.Status}}") == "exited", 30, "it ends")
    assert state(name, "{{.State.ExitCode}}") == "137"
    assert "ended by signal 9" in log(name)


def test_docker_stop_reaches_the_server(guarded: Callable[..., str]) -> None:
    name = guarded(1)
    until(lambda: listening(name), 60, "the server listens")
    docker("stop", "-t", "30", name)
    assert state(name, "{{.State.ExitCode}}") == "0"
    assert "cleaning up before exit" in log(name)


def test_the_kernel_prefers_the_server_over_the_rest(guarded: Callable[..., str]) -> None:
    name = guarded(1)
    until(lambda: listening(name), 60, "the server listens")
    assert Path(f"/proc/{server_of(name)}/oom_score_adj").read_text() == "1000\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("", "64"),
        ("--stop-below-mib x --start-above-mib 0 -- /app/health", "64"),
        ("--stop-below-mib 1 --start-above-mib 0 --", "64"),
        ("--stop-below-mib 1 --start-above-mib 0 -- /app/absent", "127"),
    ],
)
def test_wrong_usage(cpu_image: ImageRecord, words: str, code: str) -> None:
    done = docker("run", "--rm", "--entrypoint", "/app/guard", cpu_image.ref, *words.split())
    assert str(done.returncode) == code
    assert done.stderr
