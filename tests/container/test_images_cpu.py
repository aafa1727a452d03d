"""The cpu image itself: what is in it, how it starts, how it ends, and what it says of itself."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import command
from command import Done
from images import build, daemon, flavours, records
from images.records import ImageRecord
from images.sbom import sbom
from patches import engines, tree

HARDENED = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges")
LIMIT = 110_000_000


def docker(*words: str, check: bool = True) -> Done:
    return command.run(["docker", *words], check=check, timeout=120)


@pytest.fixture
def start(cpu_image: ImageRecord) -> Iterator[Callable[..., str]]:
    """Start a container, detached: options of docker, then the server's arguments after `--`."""
    started: list[str] = []

    def run(*options: str, args: tuple[str, ...] = ()) -> str:
        name = f"haloforge-test-{uuid.uuid4().hex[:12]}"
        started.append(name)
        docker("run", "--detach", "--name", name, *options, cpu_image.id, *args)
        return name

    yield run
    for name in started:
        docker("rm", "--force", "--volumes", name, check=False)


def healthy(name: str, *, within: float = 60) -> Done:
    """Ask the image's own health program until it is content, or the time is over."""
    end = time.monotonic() + within
    while True:
        done = docker("exec", name, "/app/health", check=False)
        if done.code == 0 or time.monotonic() > end:
            return done
        time.sleep(0.2)


@pytest.fixture(scope="module")
def members(cpu_image: ImageRecord) -> dict[str, tarfile.TarInfo]:
    """Every file of the image by its path."""
    name = docker("create", cpu_image.id).out.strip()
    try:
        ended = subprocess.run(["docker", "export", name], capture_output=True, check=True, timeout=120)
    finally:
        docker("rm", name)
    with tarfile.open(fileobj=io.BytesIO(ended.stdout)) as archive:
        return {member.name: member for member in archive}


def test_it_is_slim(cpu_image: ImageRecord) -> None:
    assert 20_000_000 < cpu_image.size <= LIMIT


def test_it_holds_no_shell_no_compiler_and_nothing_setuid(members: dict[str, tarfile.TarInfo]) -> None:
    programs = {
        name.rpartition("/")[2] for name, member in members.items() if member.isfile() and member.mode & 0o111
    }
    assert "llama-server" in programs
    assert not programs & {
        "sh",
        "bash",
        "dash",
        "busybox",
        "apt",
        "dpkg",
        "gcc",
        "cc",
        "perl",
        "python3",
        "curl",
    }
    assert [name for name, member in members.items() if member.mode & 0o6000] == []
    assert [name for name in members if name.endswith((".h", ".hpp", ".a"))] == []


def test_the_licences_of_what_it_holds_are_in_it(members: dict[str, tarfile.TarInfo]) -> None:
    assert "usr/share/licenses/llama.cpp/LICENSE" in members
    assert "usr/share/doc/libc6/copyright" in members


def test_it_runs_as_a_numeric_user_in_exec_form(cpu_image: ImageRecord) -> None:
    config = (daemon.inspect(cpu_image.id) or {})["Config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["/app/llama-server"]
    assert config["Healthcheck"]["Test"] == ["CMD", "/app/health"]


def test_it_names_the_pin_it_was_built_from(cpu_image: ImageRecord) -> None:
    engine = engines.load()
    done = docker("run", "--rm", cpu_image.id, "--version")
    said = done.out + done.err
    assert f"build {engine.build_number}, commit {engine.commit[:9]}" in said
    assert cpu_image.revision == engine.commit


@pytest.mark.parametrize("target", flavours.load("cpu").targets)
def test_every_program_in_it_starts(cpu_image: ImageRecord, target: str) -> None:
    done = docker("run", "--rm", "--entrypoint", f"/app/{target}", cpu_image.id, "--help", check=False)
    assert "error while loading shared libraries" not in done.err
    assert "--threads" in done.out + done.err


def test_the_stored_help_is_what_the_server_prints(cpu_image: ImageRecord) -> None:
    assert docker("run", "--rm", cpu_image.id, "--help").out == cpu_image.help_text


def test_it_becomes_healthy_hardened_and_its_health_follows_the_port(start: Callable[..., str]) -> None:
    name = start(*HARDENED, "--env", "LLAMA_ARG_PORT=9000", args=("--port", "9123"))
    done = healthy(name)
    assert (done.code, done.out.strip()) == (0, "HTTP/1.1 200 OK")
    assert "9123" in docker("logs", name).out + docker("logs", name).err


def test_health_follows_the_environment_too(start: Callable[..., str]) -> None:
    assert healthy(start(*HARDENED, "--env", "LLAMA_ARG_PORT=9000")).code == 0


def test_health_fails_where_nothing_listens(start: Callable[..., str]) -> None:
    name = start("--entrypoint", "/app/llama-server", args=("--port", "9123"))
    assert healthy(name).code == 0
    done = docker("exec", "--env", "LLAMA_ARG_HOST=127.0.0.2", name, "/app/health", check=False)
    assert done.code == 1
    assert "127.0.0.2" in done.out


def test_it_ends_on_the_stop_signal_by_itself(start: Callable[..., str]) -> None:
    name = start(*HARDENED)
    assert healthy(name).code == 0
    docker("stop", "--time", "60", name)
    state = json.loads(docker("inspect", name).out)[0]["State"]
    assert (state["ExitCode"], state["OOMKilled"]) == (0, False)


def require(image: ImageRecord, *words: str) -> Done:
    return docker("run", "--rm", "--entrypoint", "/app/require-device", image.id, *words, check=False)


def test_a_gpu_entrypoint_refuses_to_serve_on_the_cpu(cpu_image: ImageRecord) -> None:
    done = require(cpu_image, "ROCm", "/app/llama-server", "--port", "8080")
    assert done.code == 3
    for words in ("there is none", "Available devices", "--allow-cpu", "/dev/kfd"):
        assert words in done.err


def test_a_gpu_entrypoint_serves_on_the_cpu_when_told_to(cpu_image: ImageRecord) -> None:
    done = require(cpu_image, "ROCm", "/app/llama-server", "--allow-cpu", "--no-such-option")
    assert "there is none" in done.err
    assert "--no-such-option" in done.err
    assert done.code not in (0, 3)


def test_a_gpu_entrypoint_lets_printing_through(cpu_image: ImageRecord) -> None:
    done = require(cpu_image, "ROCm", "/app/llama-server", "--version")
    assert done.code == 0
    assert "there is none" not in done.err


def test_a_second_build_finds_the_image_and_does_nothing(
    cpu_image: ImageRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    again = build.build(flavours.load("cpu"), tree.patched(engines.load()))
    assert again == cpu_image
    assert "nothing to do" in capsys.readouterr().err


def test_it_is_found_by_flavour_engine_and_identity_only_if_all_match(cpu_image: ImageRecord) -> None:
    assert records.find("cpu", "llama.cpp", cpu_image.identity) == cpu_image
    assert records.find("cpu", "llama.cpp", "b0-unknown") is None
    assert cpu_image in records.all_images()


def test_the_bill_of_materials_lists_what_the_image_holds(
    cpu_image: ImageRecord, members: dict[str, tarfile.TarInfo]
) -> None:
    text = sbom(cpu_image)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    listed = {part["name"] for part in json.loads(text)["components"]}
    assert {"llama.cpp", "libc6", "libgomp1", "libstdc++6"} <= listed
    files = {name.rpartition("/")[2].partition(":")[0] for name in members if name.endswith(".list")}
    assert {name.removesuffix(".list") for name in files} == listed - {"llama.cpp"}
