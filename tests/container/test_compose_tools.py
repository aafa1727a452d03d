"""Files for other programs, read by those programs: podman's unit generator and Prometheus, Debian's both."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import requests
import yaml

import command
from compose import deploy, targets
from compose.record import Deployment
from images import base as bases
from images import flavours
from images.records import ImageRecord
from presets import schema
from tests.container import deploying
from tests.container.deploying import Home
from tests.contract.test_compose_config import TRAPS
from tests.makers import tiny
from tests.makers.rendering import inputs

FOLDER = Path(__file__).parent
EXAMPLES = FOLDER.parents[1] / "compose" / "examples"
SERIES = re.compile(r"llamacpp:\w+")


@pytest.fixture(scope="module")
def tools() -> str:
    """An image with the programs; built once, kept by BuildKit."""
    base = bases.ensure(bases.load(flavours.load("cpu").bases[0]))
    tag = "haloforge-tests/tools"
    command.run(
        ["docker", "buildx", "build", "--quiet", "--load", "--tag", tag, "--build-arg", f"BASE={base.tag}",
         FOLDER / "tools"],
        timeout=600,
    )  # fmt: skip
    return tag


# --- Quadlet ---


@pytest.mark.parametrize("name", ["demo", "quality", "team"])
def test_podman_makes_a_unit_of_every_preset(name: str, tools: str, tmp_path: Path) -> None:
    assert "--model /model/model.gguf" in unit(targets.quadlet(inputs(schema.load(name))), tools, tmp_path)


@pytest.mark.parametrize("trap", TRAPS)
def test_podman_reads_every_word_as_it_was_meant(trap: str, tools: str, tmp_path: Path) -> None:
    minimal = {"purpose": "p", "flavour": "cpu", "model": "m", "quant": "q", "ctx": "4096"}
    made = inputs(schema.parse({**minimal, **TRAPS[trap]}, name="trap"))
    text = unit(targets.quadlet(made), tools, tmp_path)
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    words = systemd_words(line)
    wanted = made.preset.arguments(11434, model="/model/model.gguf")
    assert words[-len(wanted) :] == wanted
    for name, value in made.preset.variables().items():
        assert f"{name}={value}" in words


def unit(files: dict[str, str], tools: str, folder: Path) -> str:
    """The service that podman makes of a `.container` file; any complaint fails."""
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    done = command.run(
        ["docker", "run", "--rm", "--volume", f"{folder}:/u:ro", "--env", "QUADLET_UNIT_DIRS=/u", tools,
         "/podman/usr/libexec/podman/quadlet", "-dryrun", "-user"],
    )  # fmt: skip
    complaints = [line for line in done.err.splitlines() if "Loading source unit" not in line]
    assert complaints == []
    return done.out


def systemd_words(line: str) -> list[str]:
    """Split a command line as systemd does: quotes, C escapes, then `%%` and `$$`."""
    words: list[str] = []
    for plain, quoted in re.findall(r'((?:[^\s"\\]|\\.)+)(?=\s|$)|"((?:[^"\\]|\\.)*)"', line):
        text = re.sub(r"\\(x[0-9a-f]{2}|[0-7]{3}|u[0-9a-f]{4}|U[0-9a-f]{8}|.)", _escape, plain or quoted)
        words.append(text)
    return [word.replace("%%", "%").replace("$$", "$") for word in words]


def _escape(found: re.Match[str]) -> str:
    name = found[1]
    known = {"n": "\n", "t": "\t", "s": " "}
    return chr(int(name[1:], 16)) if name[0] in "xuU" and len(name) > 1 else known.get(name, name)


# --- Prometheus ---


@pytest.fixture
def deployed(tmp_path: Path, cpu_image: ImageRecord) -> Iterator[tuple[Home, Deployment]]:
    models = tmp_path / "models"
    tiny.trunk(models / "trunk.gguf", inert=True)
    tiny.head(models / "head.gguf", agreement=0.8)
    folder = tmp_path / "home"
    folder.mkdir()
    with deploying.home(folder, models) as home:
        yield home, deploy.deploy(home.load(mtp=True)).deployment


def test_prometheus_scrapes_and_the_dashboard_asks_for_what_is_there(
    deployed: tuple[Home, Deployment], tools: str, tmp_path: Path
) -> None:
    home, deployment = deployed
    config = yaml.safe_load((EXAMPLES / "prometheus.yaml").read_text())
    config["global"]["scrape_interval"] = "1s"
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{home.port}"]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = deploying.free_port()
    server = docker.from_env().containers.run(
        tools, detach=True, network_mode="host", volumes={str(tmp_path): {"bind": "/etc/p", "mode": "ro"}},
        command=["prometheus", "--config.file=/etc/p/prometheus.yaml", "--storage.tsdb.path=/tmp/p",
                 f"--web.listen-address=127.0.0.1:{port}"],
    )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(3):
            requests.post(
                f"{deployment.url}/completion", json={"prompt": "a b c", "n_predict": 8}, timeout=60
            )
            time.sleep(1.1)
        counted = waited(lambda: asked(url, "llamacpp:tokens_predicted_total"), server)
        assert float(counted[0]["value"][1]) >= 24
        assert asked(url, "up")[0]["value"][1] == "1"
        for expression in expressions():
            assert asked(url, expression) is not None, expression
            for name in SERIES.findall(expression):
                assert asked(url, name), f"{name}, which the dashboard shows, is not there"
    finally:
        server.remove(force=True)


def expressions() -> list[str]:
    dashboard = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def asked(url: str, expression: str) -> Any:
    answer = requests.get(f"{url}/api/v1/query", params={"query": expression}, timeout=10).json()
    assert answer["status"] == "success", answer
    return answer["data"]["result"]


def waited(ask: Any, server: Any) -> Any:
    """Ask until there is an answer; the server's log tells why there is none."""
    for _ in range(100):
        try:
            if found := ask():
                return found
        except requests.ConnectionError:
            pass
        time.sleep(0.3)
    raise AssertionError(server.logs().decode()[-2000:])


@pytest.mark.parametrize("name", ["monitoring.yaml"])
def test_the_example_is_a_valid_compose_file(name: str) -> None:
    command.run(["docker", "compose", "--file", EXAMPLES / name, "config", "--quiet"])
