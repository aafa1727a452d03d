"""Real deployments of a tiny qwen4exp pair: healthy, checked, locked down, replaced, rolled back, killed."""

from __future__ import annotations

import http.server
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests

from compose import container, deploy, flags, planning, record, status, switch
from errors import BadInput, CheckFailed, DoesNotFit, HostLacks
from images.records import ImageRecord
from tests.container import deploying
from tests.container.deploying import Home
from tests.makers import tiny
from tests.makers.rendering import HELP

pytestmark = pytest.mark.usefixtures("cpu_image")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny models")
    tiny.trunk(folder / "trunk.gguf", inert=True)
    tiny.head(folder / "head.gguf", agreement=0.8)
    return folder


@pytest.fixture
def home(tmp_path: Path, models: Path, cpu_image: ImageRecord) -> Iterator[Home]:
    with deploying.home(tmp_path, models) as made:
        yield made


@pytest.mark.parametrize(
    "settings",
    [
        {"slots": 1},
        {"slots": 2, "kv_unified": True},
        {"slots": 4, "kv_unified": False, "cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attn": "on"},
    ],
    ids=["1", "2-unified", "4-split-q8"],
)
def test_a_pair_with_a_draft_head_is_healthy_and_green(home: Home, settings: Mapping[str, Any]) -> None:
    keys = home.path / "keys"
    keys.write_text("# ours\npa$$word$X 1\n".replace(" 1", ""))
    done = deploy.deploy(home.load(mtp=True, api_key_file=str(keys), **settings))
    assert done.changed
    found = status.of(done.deployment)
    assert (found.ready, found.restarts, found.problem) == (True, 0, "")
    assert found.slots == settings["slots"]
    assert found.acceptance is not None
    assert requests.get(f"{done.deployment.url}/props", timeout=5).status_code == 401
    (running,) = home.containers()
    attrs = running.attrs
    assert attrs["HostConfig"]["ReadonlyRootfs"] is True
    assert attrs["HostConfig"]["CapDrop"] == ["ALL"]
    assert "pa$$word" not in str(attrs)
    assert all(not mount["RW"] for mount in attrs["Mounts"] if mount["Type"] == "bind")
    assert {
        bound["HostIp"] for pairs in attrs["NetworkSettings"]["Ports"].values() for bound in pairs or ()
    } == {"127.0.0.1"}


def test_the_recorded_help_is_that_of_the_image(cpu_image: ImageRecord) -> None:
    assert flags.parse_help(cpu_image.help_text) == flags.parse_help(HELP)


def test_the_second_deploy_changes_nothing(home: Home) -> None:
    first = deploy.deploy(home.load())
    (running,) = home.containers()
    began = deploying.started(running)
    again = home.inv("deploy", "--preset", str(home.preset()))
    assert again.returncode == 0, again.stderr
    assert "nothing to do" in again.stderr
    assert again.stdout.strip() == first.deployment.url
    assert deploying.started(running) == began
    shown = home.inv("status")
    assert shown.returncode == 0
    assert "answers at" in shown.stdout
    assert "buffer size" in home.inv("logs", "--lines", "100000").stdout
    assert home.inv("stop").returncode == 0
    assert home.containers(running=False) == []
    assert home.inv("status").stdout.strip() == "nothing is deployed; ./inv deploy"


TRAPS: Mapping[str, Any] = {
    "alias": "- &a *b !c #d $X ${Y} $$ 'q' \"r\" Größe 日本語",
    "chat_template_kwargs": {"note": "cost $5 ${X} $NAME $$", "a": 'it\'s "x" y', "b": True, "c": "on"},
    "extra_args": ["--tags", "on,off,~,null,1e5,010,08080", "--seed", "-1"],
}


def test_every_word_reaches_the_process_as_it_was_meant(home: Home) -> None:
    preset = home.load(**TRAPS)
    rendered, deployment = deploy.prepare(preset)
    deploy.write(rendered, deployment, preset)
    container.up(record.compose_file(rendered.name), rendered.project)
    (running,) = home.containers()
    words = deploying.argv_of(running)
    assert words[0] == "/app/guard"
    assert tuple(words[words.index("--") + 2 :]) == rendered.argv
    assert words[words.index("--alias") + 1] == TRAPS["alias"]


def test_one_that_was_stopped_or_restarted_is_kept_and_brought_back(home: Home) -> None:
    first = deploy.deploy(home.load()).deployment
    (running,) = home.containers()
    os.kill(deploying.pid(running), signal.SIGKILL)
    deploying.wait_until(lambda: status.of(first).restarts == 1 and status.of(first).ready)
    assert not deploy.deploy(home.load()).changed, "a server that came back by itself is left alone"
    running.stop()
    found = status.of(first)
    assert (found.state, found.ready) == ("exited", False)
    assert home.inv("status").returncode == 1
    assert deploy.deploy(home.load()).changed
    assert status.of(first).ready


# --- what fails is put back ---


BROKEN: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "engine-refuses": ({"extra_args": ["--lora", "/nowhere.gguf"]}, "/nowhere.gguf"),
    "wrong-answer": ({"answer": "Zebra"}, "the answer is not the right one"),
    "out-of-memory": ({"memory_limit": "20m", "cache_ram": 1, "guard_gib": 0}, "memory"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_new_one_that_fails_gives_way_to_the_old_one(
    home: Home, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, told = BROKEN[fault]
    old = deploy.deploy(home.load()).deployment
    monkeypatch.setattr(planning, "gate", _without_limit(planning.gate))
    with pytest.raises(CheckFailed) as caught:
        deploy.deploy(home.load("broken", **settings))
    assert told in str(caught.value)
    assert f"{old.name} runs again" in str(caught.value)
    (running,) = home.containers()
    assert running.name == old.container
    assert record.journal().current == old.name
    assert record.journal().switch is None
    assert status.of(old).ready


def _without_limit(gate: Any) -> Any:
    """The plan refuses a limit that is too small; this lets it through, to see what the kernel does."""

    def planned(preset: Any, *words: Any, **named: Any) -> Any:
        return gate(preset.model_copy(update={"memory_limit": None}), *words, **named)

    return planned


def test_a_first_one_that_fails_leaves_nothing_running(home: Home) -> None:
    with pytest.raises(switch.SwitchFailed, match="ended while it was starting") as caught:
        deploy.deploy(home.load(extra_args=["--lora", "/nowhere.gguf"], start_seconds=600))
    assert "/nowhere.gguf" in caught.value.why
    assert home.containers(running=False) == []
    assert record.journal().current is None
    assert "/nowhere.gguf" in (record.root() / _only_folder() / "failed.log").read_text()


def _only_folder() -> str:
    (found,) = [path.name for path in record.root().iterdir() if path.is_dir() and not path.is_symlink()]
    return found


def test_rollback_goes_back_and_further_back(home: Home) -> None:
    names = [deploy.deploy(home.load(f"step{number}", slots=number)).deployment.name for number in (1, 2, 3)]
    assert record.journal().history == tuple(names[:2])
    assert deploy.rollback().name == names[1]
    assert deploy.rollback().name == names[0]
    (running,) = home.containers()
    assert running.labels["io.haloforge.deployment"] == names[0]
    assert (record.root() / "current").resolve().name == names[0]
    with pytest.raises(BadInput, match="no earlier deployment"):
        deploy.rollback()
    assert status.of(record.load(names[0])).ready


# --- refused before anything is stopped ---


class _Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status":"ok"}')

    def log_message(self, *words: object) -> None:
        pass


def test_a_port_that_something_answers_on_is_found_before_the_start(home: Home) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", home.port), _Health) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(HostLacks) as caught:
            deploy.deploy(home.load())
        server.shutdown()
    assert f"port {home.port}" in str(caught.value)
    assert "pid" in str(caught.value)
    assert "answers /health like a llama-server" in str(caught.value)
    assert home.containers(running=False) == []


def test_a_port_that_another_container_has_is_found_by_name(
    home: Home, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = deploy.deploy(home.load()).deployment
    with deploying.home(tmp_path_factory.mktemp("other"), home.models) as other:
        with pytest.raises(HostLacks, match=f"container {first.container}"):
            deploy.deploy(other.load(port=home.port))
        assert other.containers(running=False) == []
    assert status.of(first).ready


def test_what_cannot_run_is_refused_and_the_old_one_is_left_alone(home: Home) -> None:
    old = deploy.deploy(home.load()).deployment
    (running,) = home.containers()
    began = deploying.started(running)
    cut = home.models / "cut.gguf"
    cut.write_bytes((home.models / "trunk.gguf").read_bytes()[:5000])
    for wrong, kind, words in (
        ({"ctx": 1 << 26}, DoesNotFit, "too-big"),
        ({"model": str(cut)}, BadInput, "cut.gguf"),
        ({"model": str(home.models / "none.gguf")}, BadInput, "none.gguf"),
        ({"extra_args": ["--no-mmap"]}, BadInput, "use --load-mode none"),
    ):
        with pytest.raises(kind, match=words):
            deploy.deploy(home.load("wrong", **wrong))
    assert deploying.started(running) == began
    assert status.of(old).ready


# --- SIGKILL ---


def test_killing_deploy_before_the_switch_touches_nothing(home: Home) -> None:
    old = deploy.deploy(home.load()).deployment
    (running,) = home.containers()
    began = deploying.started(running)
    for step in ("doctor", "models", "plan", "render"):
        assert home.deploy_killed_at(home.preset("next", slots=2), step), step
        home.wait_for_switch()
        if record.journal().current == old.name:
            assert deploying.started(running) == began, step
        else:
            # Its last line was read so late that the switch had begun; then it has to be finished.
            assert step == "render"
    (running,) = home.containers()
    assert status.of(record.load(running.labels["io.haloforge.deployment"])).ready


@pytest.mark.parametrize("step", ["up", "healthy"])
def test_killing_deploy_during_the_switch_does_not_stop_it(home: Home, step: str) -> None:
    deploy.deploy(home.load())
    new = home.preset("next", slots=2)
    assert home.deploy_killed_at(new, step)
    home.wait_for_switch()
    (running,) = home.containers()
    assert running.labels["io.haloforge.preset"] == "next"
    now = record.journal()
    assert (now.current, now.switch) == (running.labels["io.haloforge.deployment"], None)
    assert status.of(record.load(running.labels["io.haloforge.deployment"])).ready
    after = home.inv("deploy", "--preset", str(new))
    assert after.returncode == 0, after.stderr
    assert "nothing to do" in after.stderr


def test_a_rerun_waits_for_the_switch_of_a_killed_deploy(home: Home) -> None:
    """It may come after the switch on a slow machine; that it says so is proven in tests/unit."""
    deploy.deploy(home.load())
    new = home.preset("next", slots=2)
    assert home.deploy_killed_at(new, "up")
    after = home.inv("deploy", "--preset", str(new))
    assert after.returncode == 0, after.stderr
    assert "nothing to do" in after.stderr
    (running,) = home.containers()
    assert running.labels["io.haloforge.deployment"] == record.journal().current


def test_a_switch_that_was_killed_itself_is_finished_by_the_next_deploy(home: Home) -> None:
    old = deploy.deploy(home.load()).deployment
    preset = home.load("next", slots=2)
    rendered, deployment = deploy.prepare(preset)
    deploy.write(rendered, deployment, preset)
    # What a kill of the switch between "old stopped" and "new started" leaves behind.
    change = record.Switch(old=old.name, new=rendered.name)
    record.write_journal(record.journal().model_copy(update={"switch": change}))
    container.stop(old.container)
    assert home.containers() == []
    with record.lock():
        deploy.recover()
    (running,) = home.containers()
    assert running.name == old.container
    assert record.journal() == record.Journal(current=old.name)
