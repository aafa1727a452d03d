"""What decides an image: flavours, bases, options, arguments, labels and the digest over them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from errors import BadInput
from images import base as bases
from images import flavours, matrix, pin
from images.base import BaseImage
from images.recipe import Recipe, build_arguments, check_options, jobs_for, labels, recipe, unknown_options
from patches import engines
from patches.tree import PatchedTree

ENGINE = engines.load()
TREE = PatchedTree(
    path=Path("/tree"),
    engine=ENGINE,
    series_digest="ab" * 32,
    identity=f"{ENGINE.pin}-abababababab",
    patches=(("L1", "01" * 32), ("L2", "02" * 32)),
    digest="cd" * 32,
)


def make(flavour: str = "cpu", *, base: str = "", identity: str = TREE.identity, cpu: str = "") -> Recipe:
    chosen = flavours.load(flavour, cpu=cpu)
    return recipe(chosen, bases.load(base or chosen.bases[0]), ENGINE, identity)


@pytest.mark.parametrize("name", flavours.names())
def test_every_flavour_has_packages_on_each_of_its_bases(name: str) -> None:
    flavour = flavours.load(name)
    for base in flavour.bases:
        packages = bases.load(base).packages[name]
        assert {"cmake", "ninja-build", "ccache", "g++"} <= set(packages.build)
        assert "libgomp1" in packages.run
        assert not {"g++", "gcc", "hipcc", "bash", "dash", "apt"} & set(packages.run)


@pytest.mark.parametrize("name", flavours.names())
def test_no_flavour_is_compiled_for_the_machine_that_builds(name: str) -> None:
    assert flavours.load(name).cmake["GGML_NATIVE"] == "OFF"


def test_a_registry_image_without_a_digest_is_refused() -> None:
    document = {"summary": "x", "registry": {"image": "docker.io/library/debian:trixie-slim"}}
    with pytest.raises(BadInput, match=r"x is wrong") as caught:
        bases.parse("x", document)
    assert "registry.digest" in caught.value.why


@pytest.mark.parametrize(
    ("load", "wrong", "near"),
    [(flavours.load, "rcom", "rocm"), (bases.load, "trixi", "trixie"), (flavours.load, "CPU", "cpu")],
)
def test_a_misspelt_name_is_answered_with_the_near_one(load: object, wrong: str, near: str) -> None:
    assert callable(load)
    with pytest.raises(BadInput) as caught:
        load(wrong)
    assert near in caught.value.why


def test_an_unknown_processor_is_answered_with_the_near_one() -> None:
    with pytest.raises(BadInput) as caught:
        flavours.load("rocm", cpu="zen4")
    assert "zen5" in caught.value.why


def test_a_base_whose_rocm_lacks_the_gpu_is_refused_with_the_reason() -> None:
    with pytest.raises(BadInput) as caught:
        bases.load("forky-rocm6")
    assert "gfx1151" in caught.value.why


def test_a_flavour_is_not_built_on_a_base_without_packages_for_it() -> None:
    with pytest.raises(BadInput, match="rocm is not built on the base trixie"):
        make("rocm", base="trixie")


def test_the_processor_decides_the_host_options() -> None:
    assert make("rocm").cmake["GGML_AVX512"] == "ON"
    assert "GGML_AVX512" not in make("rocm", cpu="generic").cmake


def test_the_pin_reaches_cmake() -> None:
    options = build_arguments(make(), IMAGE, epoch=0, ccache="x")["CMAKE_OPTIONS"].split()
    assert f"-DLLAMA_BUILD_NUMBER={ENGINE.build_number}" in options
    assert f"-DLLAMA_BUILD_COMMIT={ENGINE.commit[:9]}" in options
    assert "-DLLAMA_USE_PREBUILT_UI=OFF" in options


IMAGE = BaseImage(tag="haloforge/base:x", id="sha256:" + "0" * 64, origin="docker.io/library/debian@sha256:1")


def test_package_pins_reach_the_build_exactly() -> None:
    arguments = build_arguments(make("rocm"), IMAGE, epoch=7, ccache="x")
    assert "librocblas5=7.2.4-1~exp1" in arguments["PINS"].split()
    assert arguments["DEVICE_TARGET"] == "gfx1151"
    assert arguments["SOURCE_DATE_EPOCH"] == "7"


def test_the_digest_follows_what_is_in_the_image_and_nothing_else() -> None:
    digest = make().digest
    assert make().digest == digest
    assert make(identity="other").digest != digest
    assert make(cpu="zen5").digest != digest
    wider = dataclasses.replace(make(), flavour=make().flavour.model_copy(update={"job_mib": 4096}))
    assert recipe(wider.flavour, wider.base, ENGINE, TREE.identity).digest == digest


def test_a_planted_fault_shows_in_the_tag() -> None:
    assert make(identity=f"{TREE.identity}-fault-shared-ids").tag.endswith("-fault-shared-ids")
    assert "fault" not in make().tag


def test_labels_name_engine_series_and_flavour() -> None:
    given = labels(make("rocm"), TREE, IMAGE, version="1.0")
    assert given["org.opencontainers.image.revision"] == ENGINE.commit
    assert given["io.haloforge.series"] == TREE.series_digest
    assert given["io.haloforge.device"] == "ROCm"
    assert json.loads(given["io.haloforge.patches"]) == [["L1", "01" * 32], ["L2", "02" * 32]]


def cmake_tree(folder: Path) -> Path:
    (folder / "ggml").mkdir()
    (folder / "CMakeLists.txt").write_text('option(GGML_NATIVE "x" ON)\noption(LLAMA_OPENSSL "x" ON)\n')
    (folder / "ggml" / "hip.cmake").write_text("if (DEFINED GPU_TARGETS)\nendif()\n")
    return folder


def test_an_option_that_the_tree_never_mentions_is_found(tmp_path: Path) -> None:
    wanted = ["GGML_NATIVE", "GPU_TARGETS", "GGML_HIP_ROCWMMA_FATTN", "CMAKE_BUILD_TYPE"]
    assert unknown_options(wanted, cmake_tree(tmp_path)) == ["GGML_HIP_ROCWMMA_FATTN"]


def test_an_option_that_is_gone_stops_the_build_and_names_the_near_one(tmp_path: Path) -> None:
    made = dataclasses.replace(make(), cmake={"LLAMA_OPENSL": "OFF"})
    with pytest.raises(BadInput, match="LLAMA_OPENSL") as caught:
        check_options(made, cmake_tree(tmp_path))
    assert "LLAMA_OPENSSL" in caught.value.why


@pytest.mark.parametrize(
    ("flavour", "gib", "processors", "jobs"),
    [("cpu", 24, 2, 2), ("cpu", 24, 64, 23), ("rocm", 24, 64, 11), ("rocm", 2, 8, 1), ("cpu", 0, 8, 1)],
)
def test_jobs_follow_memory_and_processors(flavour: str, gib: int, processors: int, jobs: int) -> None:
    assert jobs_for(flavours.load(flavour), gib << 30, processors) == jobs


def test_the_matrix_has_every_flavour_of_every_engine_once() -> None:
    found = [(job["engine"], job["flavour"]) for job in matrix.matrix()["include"]]
    assert sorted(found) == sorted((e, f) for e in engines.names() for f in flavours.names())
    assert [job["flavour"] for job in matrix.matrix()["include"] if job["smoke"]] == ["cpu"] * len(
        engines.names()
    )


def test_pinning_changes_the_digest_and_nothing_else(tmp_path: Path) -> None:
    old, new = "sha256:" + "a" * 64, "sha256:" + "b" * 64
    file = tmp_path / "bases.yaml"
    file.write_text(f"# why\nbases:\n  x:\n    registry: {{image: a:b, digest: {old}}}\n")
    pin.write(file, old, new)
    assert file.read_text() == f"# why\nbases:\n  x:\n    registry: {{image: a:b, digest: {new}}}\n"
    with pytest.raises(BadInput):
        pin.write(file, old, new)
