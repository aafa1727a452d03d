"""The GPU flavours, compiled whole. An hour on two cores for ROCm, so these run nightly (`-m rocm_build`)."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
import time
import uuid
from collections.abc import Iterator

import pytest

import web
from images import build, daemon, flavours
from images.records import ImageRecord
from images.sbom import sbom
from patches import engines, tree
from tests.container.registry import served

pytestmark = pytest.mark.rocm_build
for_rocm = pytest.mark.parametrize("image", ["rocm"], indirect=True)
for_vulkan = pytest.mark.parametrize("image", ["vulkan"], indirect=True)

SIZES = {"rocm": 1_200_000_000, "vulkan": 600_000_000}
COMPRESSED = {"rocm": 400_000_000, "vulkan": 200_000_000}


@pytest.fixture(scope="module", params=["vulkan", "rocm"])
def image(request: pytest.FixtureRequest) -> ImageRecord:
    return build.build(flavours.load(request.param), tree.patched(engines.load()))


@pytest.fixture(scope="module")
def files(image: ImageRecord) -> Iterator[tarfile.TarFile]:
    """The image's whole file system."""
    name = daemon.docker("create", image.id).out.strip()
    try:
        ended = subprocess.run(["docker", "export", name], capture_output=True, check=True, timeout=300)
    finally:
        daemon.docker("rm", name)
    with tarfile.open(fileobj=io.BytesIO(ended.stdout)) as archive:
        yield archive


def test_it_is_slim(image: ImageRecord) -> None:
    assert image.size <= SIZES[image.flavour]


def test_it_is_slim_on_the_wire(image: ImageRecord, tmp_path_factory: pytest.TempPathFactory) -> None:
    with served(tmp_path_factory.mktemp("registry")) as address:
        ref = f"{address}/haloforge/llama.cpp:{image.flavour}"
        pushed = build.build(flavours.load(image.flavour), tree.patched(engines.load()), push=ref)
        url = f"http://{address}/v2/haloforge/llama.cpp/manifests/{pushed.digest}"
        accept = "application/vnd.docker.distribution.manifest.v2+json"
        with web.session(local=True) as session:
            layers = session.get(url, headers={"Accept": accept}).json()["layers"]
        daemon.docker("image", "rm", ref, check=False)
    assert 0 < sum(layer["size"] for layer in layers) <= COMPRESSED[image.flavour]


def test_it_holds_no_shell_no_compiler_no_header_and_nothing_setuid(files: tarfile.TarFile) -> None:
    members = files.getmembers()
    programs = {m.name.rpartition("/")[2] for m in members if m.isfile() and m.mode & 0o111}
    assert not programs & {
        "sh",
        "bash",
        "dash",
        "apt",
        "dpkg",
        "gcc",
        "clang",
        "clang-22",
        "hipcc",
        "perl",
        "python3",
    }
    assert [m.name for m in members if m.mode & 0o6000] == []
    assert [m.name for m in members if m.name.endswith((".h", ".hpp", ".a"))] == []


def run(image: ImageRecord, *words: str) -> tuple[int, str]:
    done = daemon.docker("run", "--rm", "--read-only", "--cap-drop=ALL", image.id, *words, check=False)
    return done.code, done.out + done.err


def test_it_says_what_it_is_and_that_there_is_no_device(image: ImageRecord) -> None:
    code, said = run(image, "--version")
    assert (code, f"build {engines.load().build_number}" in said) == (0, True)
    code, said = run(image, "--list-devices")
    assert (code, "(none)" in said) == (0, True)


def test_it_refuses_to_serve_without_its_device(image: ImageRecord) -> None:
    code, said = run(image, "--port", "8080")
    assert code == 3
    assert f"this image is for a {image.device} device and there is none" in said


def test_it_serves_on_the_cpu_when_told_to(image: ImageRecord) -> None:
    name = f"haloforge-test-{uuid.uuid4().hex[:12]}"
    daemon.docker("run", "--detach", "--name", name, "--read-only", "--tmpfs=/tmp", image.id, "--allow-cpu")
    try:
        end = time.monotonic() + 60
        while daemon.docker("exec", name, "/app/health", check=False).code and time.monotonic() < end:
            time.sleep(0.5)
        assert daemon.docker("exec", name, "/app/health", check=False).out.strip() == "HTTP/1.1 200 OK"
    finally:
        daemon.docker("rm", "--force", name)


@for_rocm
def test_device_code_is_for_gfx1151_and_nothing_else(image: ImageRecord, files: tarfile.TarFile) -> None:
    library = next(m for m in files.getmembers() if m.isfile() and "libggml-hip.so" in m.name)
    content = files.extractfile(library)
    assert content is not None
    targets = re.findall(rb"amdgcn-amd-amdhsa--(gfx[0-9a-z]+)", content.read())
    assert len(targets) > 100
    assert set(targets) == {b"gfx1151"}


@for_rocm
def test_rocblas_has_its_kernels_and_no_others(image: ImageRecord, files: tarfile.TarFile) -> None:
    kernels = [m.name for m in files.getmembers() if m.isfile() and "/rocblas/" in m.name]
    named = {target for name in kernels for target in re.findall(r"gfx[0-9a-f]+", name)}
    assert named == {"gfx1151"}
    assert any(name.endswith("_fallback.dat") for name in kernels)
    assert any("TensileLibrary_lazy_gfx1151" in name for name in kernels)


@for_rocm
def test_the_bill_of_materials_tells_what_was_left_out(image: ImageRecord) -> None:
    parts = {part["name"]: part["version"] for part in json.loads(sbom(image))["components"]}
    assert parts["librocblas5"].startswith("7.2.4")
    assert {"libamd-comgr3", "libamdhip64-7"} <= set(parts)
    assert "librocsolver0" not in parts


@for_vulkan
def test_the_driver_of_strix_halo_is_in_it(image: ImageRecord, files: tarfile.TarFile) -> None:
    names = {name.rpartition("/")[2] for name in files.getnames()}
    assert {"libvulkan_radeon.so", "radeon_icd.json"} <= names
    assert "mesa-vulkan-drivers" in {part["name"] for part in json.loads(sbom(image))["components"]}
