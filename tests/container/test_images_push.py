"""Pushing to a real registry, pulling by the digest it gave, and running what came."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import command
import web
from errors import BadInput, NetworkFailed
from images import build, daemon, flavours, records
from images.records import ImageRecord
from patches import engines, tree

CONFIG = """version: 0.1
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def registry_program(folder: Path) -> str:
    """Debian's docker-registry: the installed one, else its package unpacked into a folder."""
    found = shutil.which("docker-registry")
    if found:
        return found
    if not (command.have("apt-get") and command.have("dpkg-deb")):
        pytest.skip("docker-registry is not installed, and this host has no apt to get it with")
    command.run(["apt-get", "download", "docker-registry"], cwd=folder, timeout=120)
    command.run(["dpkg-deb", "-x", *folder.glob("docker-registry_*.deb"), folder / "registry"])
    return str(folder / "registry/usr/bin/docker-registry")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a registry on loopback, which engines accept without TLS."""
    folder, port = tmp_path_factory.mktemp("registry"), free_port()
    config = folder / "config.yml"
    config.write_text(CONFIG.format(root=folder / "storage", port=port))
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([registry_program(folder), "serve", config], stdout=log, stderr=log)
    try:
        address = f"127.0.0.1:{port}"
        wait_for(address, server)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 30
    with web.session(local=True) as session:
        while server.poll() is None and time.monotonic() < end:
            try:
                if session.get(f"http://{address}/v2/").ok:
                    return
            except OSError:
                time.sleep(0.1)
    raise AssertionError(f"the registry does not answer (it ended with {server.poll()})")


@pytest.fixture
def pushed(cpu_image: ImageRecord, registry: str) -> Iterator[ImageRecord]:
    repository = f"{registry}/haloforge/llama.cpp"
    record = build.build(flavours.load("cpu"), tree.patched(engines.load()), push=f"{repository}:cpu-test")
    yield record
    daemon.docker("image", "rm", f"{repository}:cpu-test", record.ref, check=False)


def test_a_pushed_image_comes_back_by_its_digest_and_runs(
    cpu_image: ImageRecord, pushed: ImageRecord
) -> None:
    repository, _, digest = pushed.ref.partition("@")
    assert digest == pushed.digest
    daemon.docker("image", "rm", f"{repository}:cpu-test", pushed.ref, check=False)
    assert daemon.inspect(pushed.ref) is None
    assert daemon.pull(pushed.ref, lambda line: None) == ""
    pulled = records.of(pushed.ref)
    assert pulled is not None
    assert (pulled.id, pulled.recipe, pulled.identity) == (cpu_image.id, cpu_image.recipe, cpu_image.identity)
    done = daemon.docker("run", "--rm", pushed.ref, "--version")
    assert f"build {engines.load().build_number}" in done.out + done.err


def test_the_registry_holds_what_the_record_says(pushed: ImageRecord, registry: str) -> None:
    url = f"http://{registry}/v2/haloforge/llama.cpp/manifests/cpu-test"
    accept = (
        "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"
    )
    with web.session(local=True) as session:
        answer = session.get(url, headers={"Accept": accept})
    assert answer.headers["Docker-Content-Digest"] == pushed.digest
    assert sum(layer["size"] for layer in answer.json()["layers"]) < pushed.size


def test_a_registry_that_is_not_there_is_a_network_error(cpu_image: ImageRecord) -> None:
    ref = f"127.0.0.1:{free_port()}/haloforge/llama.cpp:cpu-test"
    try:
        with pytest.raises(NetworkFailed, match="was not pushed"):
            build.build(flavours.load("cpu"), tree.patched(engines.load()), push=ref)
    finally:
        daemon.docker("image", "rm", ref, check=False)


@pytest.mark.parametrize("ref", ["registry.example/name", "registry.example/name@sha256:" + "0" * 64])
def test_a_reference_without_a_tag_is_bad_input(cpu_image: ImageRecord, ref: str) -> None:
    with pytest.raises(BadInput, match="cannot be pushed to"):
        build.build(flavours.load("cpu"), tree.patched(engines.load()), push=ref)
