"""Pushing to a real registry, pulling by the digest it gave, and running what came."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import web
from errors import BadInput, NetworkFailed
from images import build, daemon, flavours, records
from images.records import ImageRecord
from patches import engines, tree
from tests.container.registry import free_port, served


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("registry")) as address:
        yield address


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
