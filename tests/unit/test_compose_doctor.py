"""The doctor: parsers against recorded output, and its judgement of boxes that nobody has here."""

from __future__ import annotations

import dataclasses
import errno
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from compose import doctor, doctor_engine, doctor_facts
from compose.doctor import needed, report
from compose.doctor_facts import (
    Disk,
    Distribution,
    Engine,
    Facts,
    Firmware,
    GpuMemory,
    Kernel,
    KernelParameters,
    Limit,
    Memory,
    Node,
    Power,
    Process,
)
from compose.doctor_findings import CHECKS, Finding, Wish, corrupting, gtt_parameters, judge, limit_finding
from errors import BadInput, HostLacks
from paths import ROOT

GIB = 1 << 30
DATA = sorted((ROOT / "tests/data/doctor").glob("*.json"))


def plain(value: Any) -> Any:
    """A fact as JSON would give it back."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.stem)
def test_parser_reads_recorded_output(path: Path) -> None:
    case = json.loads(path.read_text())
    fact = getattr(doctor_facts, case["fact"])
    assert plain(fact.parse(case["output"])) == case["value"]


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.stem)
def test_recorded_command_is_the_one_in_use(path: Path) -> None:
    case = json.loads(path.read_text())
    assert case["command"] == getattr(doctor_facts, case["fact"]).command


def facts_of_module() -> list[doctor_facts.Fact[Any]]:
    return [value for value in vars(doctor_facts).values() if isinstance(value, doctor_facts.Fact)]


@pytest.mark.parametrize("fact", facts_of_module(), ids=lambda fact: fact.parse.__name__)
@pytest.mark.parametrize("output", ["", "\n\n", "sh: 1: not found\n", "\x00\xff=:\n"])
def test_parsers_survive_what_is_not_there(fact: doctor_facts.Fact[Any], output: str) -> None:
    json.dumps(plain(fact.parse(output)))


def test_every_fact_has_a_recording() -> None:
    recorded = {json.loads(path.read_text())["fact"] for path in DATA}
    named = {name for name, value in vars(doctor_facts).items() if isinstance(value, doctor_facts.Fact)}
    assert named - recorded == {"ENVIRONMENT"}


STRIX = Facts(
    distribution=Distribution(id="fedora", like=(), version="44", codename="", name="Fedora Linux 44"),
    memory=Memory(total=110 * GIB, available=106 * GIB, swap_total=8 * GIB, swap_free=8 * GIB),
    engine=Engine(client=True, server="28.5.1", buildx="0.29.1", compose="2.40.3", cgroup="2"),
    kernel=Kernel(text="7.1.3-200.fc44.x86_64", numbers=(7, 1, 3)),
    command_line=KernelParameters(gttsize_mib=126976, pages_limit=32505856, iommu="off", words={}),
    gpu_memory=(GpuMemory(card="card1", gtt_total=124 * GIB, gtt_used=0, vram_total=GIB // 2, vram_used=0),),
    nodes=(
        Node(path="/dev/kfd", opens=True, gid=992, mode=0o666),
        Node(path="/dev/dri/renderD128", opens=True, gid=110, mode=0o660),
    ),
    targets=("gfx1151",),
    firmware=Firmware(release=20260108, mes=0x80),
    programs=frozenset({"git", "mmdebstrap"}),
    power=Power(governor="performance", profile="performance", dpm=("auto",), huge_pages="madvise"),
    disks=(Disk(purpose="models", path="/models", free=500 * GIB, read_mib_s=5500.0),),
)
GPU = Wish(gpu=True)


def codes(findings: Iterable[Finding], *severities: str) -> set[str]:
    return {f.code for f in findings if f.severity in (severities or ("note", "warning", "error"))}


def test_a_good_box_has_nothing_to_mend() -> None:
    assert codes(judge(STRIX, GPU)) == set()


def line(**changes: Any) -> KernelParameters:
    return dataclasses.replace(STRIX.command_line, **changes)


FAULTS: list[tuple[str, str, dict[str, Any]]] = [
    ("docker-missing", "error", {"engine": Engine()}),
    ("docker-unreachable", "error", {"engine": Engine(client=True, buildx="0.29", compose="2.40")}),
    ("docker-permission", "error", {"engine": Engine(client=True, error="permission denied while trying")}),
    ("docker-old", "error", {"engine": Engine(client=True, server="19.3.1")}),
    ("buildx-missing", "error", {"engine": Engine(client=True, server="28.2.2", compose="2.40.3")}),
    ("compose-missing", "error", {"engine": Engine(client=True, server="28.2.2", buildx="0.29.1")}),
    ("compose-old", "error", {"engine": Engine(client=True, server="28.2.2", compose="2.17.2")}),
    (
        "docker-rootless",
        "warning",
        {"engine": dataclasses.replace(STRIX.engine, security=("name=rootless",))},
    ),
    ("git-missing", "error", {"programs": frozenset({"mmdebstrap"})}),
    ("mmdebstrap-missing", "note", {"programs": frozenset({"git"})}),
    ("kfd-absent", "error", {"nodes": STRIX.nodes[1:]}),
    ("render-absent", "error", {"nodes": STRIX.nodes[:1]}),
    ("kfd-denied", "error", {"nodes": (dataclasses.replace(STRIX.nodes[0], opens=False), STRIX.nodes[1])}),
    ("render-denied", "error", {"nodes": (STRIX.nodes[0], dataclasses.replace(STRIX.nodes[1], opens=False))}),
    ("gpu-other", "error", {"targets": ("gfx1103",)}),
    ("gpu-unknown", "warning", {"targets": ()}),
    ("gtt-default", "warning", {"command_line": line(gttsize_mib=None, pages_limit=None)}),
    ("gtt-one-parameter", "warning", {"command_line": line(pages_limit=None)}),
    ("gtt-one-parameter", "warning", {"command_line": line(gttsize_mib=None)}),
    ("gtt-disagree", "warning", {"command_line": line(pages_limit=3250585)}),
    (
        "gtt-visible",
        "warning",
        {"gpu_memory": (dataclasses.replace(STRIX.gpu_memory[0], gtt_total=63 * GIB),)},
    ),
    (
        "vram-carveout",
        "note",
        {
            "gpu_memory": (dataclasses.replace(STRIX.gpu_memory[0], vram_total=96 * GIB),),
            "memory": dataclasses.replace(STRIX.memory, total=31 * GIB),
        },
    ),
    ("kernel-old", "warning", {"kernel": Kernel(text="6.8.0-90-generic", numbers=(6, 8, 0))}),
    ("kernel-vgpr", "warning", {"kernel": Kernel(text="6.17.9-300.fc43", numbers=(6, 17, 9))}),
    ("kernel-vgpr", "warning", {"kernel": Kernel(text="6.17.0-1017-oem", numbers=(6, 17, 0))}),
    ("iommu-on", "note", {"command_line": line(iommu="pt")}),
    ("firmware-bad", "error", {"firmware": Firmware(release=20251125, mes=None)}),
    ("firmware-bad", "error", {"firmware": Firmware(release=20251125, mes=0x83)}),
    (
        "firmware-bad",
        "warning",
        {
            "firmware": Firmware(release=None, mes=0x83),
            "command_line": line(words={"amdgpu.cwsr_enable": "0"}),
        },
    ),
    ("env-unified-memory", "warning", {"environment": {"GGML_CUDA_ENABLE_UNIFIED_MEMORY": "0"}}),
    ("memory-low", "warning", {"memory": dataclasses.replace(STRIX.memory, available=GIB)}),
    ("cgroup-limit", "warning", {"own_limit": 32 * GIB}),
    ("swap-used", "warning", {"memory": dataclasses.replace(STRIX.memory, swap_free=2 * GIB)}),
    ("container-limit", "warning", {"limits": (Limit(container="llama", limit=108 * GIB),)}),
    ("other-server", "warning", {"processes": (Process(pid=900, name="llama-server", rss=GIB),)}),
    ("disk-full", "error", {"disks": (Disk(purpose="models", path="/m", free=GIB),)}),
    ("disk-readonly", "error", {"disks": (Disk(purpose="models", path="/m", free=GIB, refusal="no"),)}),
    ("disk-slow", "warning", {"disks": (Disk(purpose="models", path="/m", free=99 * GIB, read_mib_s=18.0),)}),
    ("governor", "note", {"power": dataclasses.replace(STRIX.power, governor="powersave")}),
    ("platform-profile", "note", {"power": dataclasses.replace(STRIX.power, profile="balanced")}),
    ("huge-pages", "note", {"power": dataclasses.replace(STRIX.power, huge_pages="never")}),
    ("gpu-clock", "note", {"power": dataclasses.replace(STRIX.power, dpm=("low",))}),
    ("selinux-devices", "error", {"selinux": ("enforcing", False)}),
]


@pytest.mark.parametrize(("code", "severity", "change"), FAULTS)
def test_each_fault_is_found_with_why_and_fix(code: str, severity: str, change: dict[str, Any]) -> None:
    findings = judge(dataclasses.replace(STRIX, **change), GPU)
    found = [finding for finding in findings if finding.code == code]
    assert [finding.severity for finding in found] == [severity]
    assert found[0].why
    assert found[0].fix
    assert code in report(findings)


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": Kernel(text="6.17.0-1018-oem", numbers=(6, 17, 0))},
        {"firmware": Firmware(release=20251125, mes=0x80)},
        {"selinux": ("enforcing", True)},
        {"processes": (Process(pid=7, name="llama-server", rss=GIB),), "own_pids": frozenset({7})},
        {"limits": (Limit(container="db", limit=GIB),)},
        {"own_limit": 200 * GIB},
    ],
)
def test_what_only_looks_like_a_fault_is_none(change: dict[str, Any]) -> None:
    assert codes(judge(dataclasses.replace(STRIX, **change), GPU)) == set()


def test_a_plain_machine_is_only_told_what_it_misses() -> None:
    here = Facts(
        distribution=STRIX.distribution, memory=STRIX.memory, engine=STRIX.engine, programs=STRIX.programs
    )
    assert codes(judge(here, Wish())) == {"kfd-absent", "render-absent"}
    assert codes(judge(here, Wish()), "warning", "error") == set()
    assert codes(judge(here, GPU), "error") == {"kfd-absent", "render-absent"}


def test_gtt_parameters_agree_with_the_published_ones() -> None:
    assert gtt_parameters(128 * GIB) == "amdgpu.gttsize=126976 ttm.pages_limit=32505856"
    assert gtt_parameters(96 * GIB) == "amdgpu.gttsize=94208 ttm.pages_limit=24117248"


def test_the_fix_of_gtt_fits_the_memory_that_is_installed() -> None:
    carved = dataclasses.replace(
        STRIX,
        memory=dataclasses.replace(STRIX.memory, total=31 * GIB),
        gpu_memory=(dataclasses.replace(STRIX.gpu_memory[0], vram_total=96 * GIB, gtt_total=15 * GIB),),
        command_line=line(gttsize_mib=None, pages_limit=None),
    )
    found = next(f for f in judge(carved, GPU) if f.code == "gtt-default")
    assert "amdgpu.gttsize=126976" in found.fix
    assert "grubby" in found.fix


def test_a_container_is_told_to_look_at_its_host() -> None:
    lxc = dataclasses.replace(STRIX, container="lxc", nodes=())
    assert all("on the host" in f.fix for f in judge(lxc, GPU) if f.code.endswith("-absent"))


def test_remote_daemon_is_named() -> None:
    facts = dataclasses.replace(STRIX, engine=Engine(client=True, error="Cannot connect"))
    found = judge(facts, Wish(docker_host="tcp://box:2375"))[0]
    assert "tcp://box:2375" in found.what


def test_codes_are_unique_to_a_check() -> None:
    owners: dict[str, str] = {}
    for _, _, change in FAULTS:
        facts = dataclasses.replace(STRIX, **change)
        for check in CHECKS:
            for finding in check(facts, GPU):
                assert owners.setdefault(finding.code, check.__name__) == check.__name__


@pytest.mark.parametrize("value", ["0", "1", ""])
@pytest.mark.parametrize("name", ["GGML_CUDA_ENABLE_UNIFIED_MEMORY", "GGML_HIP_ENABLE_UNIFIED_MEMORY"])
def test_unified_memory_counts_as_set_whatever_its_value(name: str, value: str) -> None:
    assert codes(corrupting({name: value}), "error") == {"env-unified-memory"}


def test_environment_of_a_preset() -> None:
    assert codes(corrupting({"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}), "error") == {"env-gfx-override"}
    assert codes(corrupting({"LLAMA_ATTN_ROT_DISABLE": "1"}), "warning") == {"env-slowing"}
    assert corrupting({"ROCBLAS_USE_HIPBLASLT": "1", "LLAMA_ATTN_ROT_DISABLE": "0"}) == []


def test_container_limit_near_the_total() -> None:
    assert limit_finding("llama", 124 * GIB, 125 * GIB) is not None
    assert limit_finding("llama", 100 * GIB, 125 * GIB) is None


@pytest.mark.parametrize(
    ("found", "remote", "daemon", "needs"),
    [
        ({"docker-missing", "buildx-missing", "compose-missing", "git-missing"}, False, False,
         {"engine", "buildx", "compose", "git"}),
        ({"docker", "buildx", "compose-missing"}, False, True, {"compose"}),
        ({"docker-unreachable", "buildx", "compose"}, False, True, set()),
        ({"docker-unreachable", "buildx", "compose"}, False, False, {"engine"}),
        ({"docker-missing", "buildx-missing"}, True, False, {"client", "buildx"}),
        ({"docker-unreachable", "mmdebstrap-missing"}, True, False, {"mmdebstrap"}),
        ({"docker-old"}, False, True, {"engine"}),
    ],
)  # fmt: skip
def test_needs(found: set[str], remote: bool, daemon: bool, needs: set[str]) -> None:
    assert needed(found, remote=remote, daemon=daemon) == needs


def system(identity: str, codename: str = "", like: tuple[str, ...] = ()) -> Distribution:
    return Distribution(id=identity, like=like, version="", codename=codename, name=identity)


@pytest.mark.parametrize(
    ("distribution", "installed", "row"),
    [
        (system("debian", "bookworm"), (), "bookworm"),
        (system("debian", "trixie"), (), "debian"),
        (system("debian", "bookworm"), ("docker-ce",), "docker-ce"),
        (system("fedora"), (), "fedora"),
        (system("nobara", like=("rhel", "centos", "fedora")), (), "fedora"),
        (system("ubuntu", "noble", ("debian",)), (), "ubuntu"),
        (system("linuxmint", "wilma", ("ubuntu", "debian")), (), "ubuntu"),
    ],
)
def test_row_of_packages(distribution: Distribution, installed: tuple[str, ...], row: str) -> None:
    assert doctor_engine.family(distribution, installed) == row


def test_packages_of_the_two_debians() -> None:
    all_needs = ("engine", "buildx", "compose", "git", "mmdebstrap")
    twelve = doctor_engine.packages("bookworm", all_needs)
    assert set(twelve) == {
        "docker.io", "docker-compose", "docker-buildx", "iptables", "ca-certificates", "git", "mmdebstrap",
    }  # fmt: skip
    assert set(doctor_engine.packages("debian", all_needs)) - set(twelve) == {"docker-cli"}
    assert doctor_engine.packages("debian", ["git"]) == ["git", "ca-certificates"]


TARGETS = """\
http://mirror.example/debian/|Debian|bookworm|main|/usr/share/keyrings/debian-archive-keyring.gpg
http://mirror.example/debian/|Debian|bookworm-updates|main|$(SIGNED_BY)
http://other.example/apt/|Google|cloud|main|
"""


def test_trixie_source_is_the_hosts_own_mirror() -> None:
    source, pin = doctor_engine.trixie_source(doctor_engine.parse_sources(TARGETS))
    assert "URIs: http://mirror.example/debian/\n" in source
    assert "Suites: trixie\n" in source
    assert "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n" in source
    assert "Pin-Priority: -1" in pin
    assert "Package: docker-compose docker-buildx\n" in pin


def test_trixie_source_needs_a_bookworm_source() -> None:
    with pytest.raises(HostLacks, match="bookworm"):
        doctor_engine.trixie_source(())


def test_every_code_is_documented_and_no_other() -> None:
    source = (ROOT / "compose/doctor_findings.py").read_text()
    quoted = set(re.findall(r'code=f?"([^"]+)"', source)) | set(
        re.findall(r'code="[^"]+" if \w+ else "([^"]+)"', source)
    )
    table = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/doctor.md").read_text(), re.M)
    documented = {code for row in table for code in re.findall(r"`([\w-]+)`", row)}
    plain_codes = {code for code in quoted if "{" not in code}
    assert plain_codes <= documented
    assert {code for code, _, _ in FAULTS} <= documented
    for code in documented - plain_codes:
        assert code in source or code.rpartition("-")[0] in source


@pytest.mark.parametrize("home", ["/proc/none", "/sys/none", "FILE", "FILE/home"])
def test_a_folder_that_cannot_be_made_is_not_a_full_disk(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HALOFORGE_HOME", home.replace("FILE", str(tmp_path / "file")))
    found = judge(dataclasses.replace(STRIX, disks=doctor.disks(measure=False)), Wish())
    assert [f.code for f in found if f.code.startswith("disk")] == ["disk-readonly", "disk-readonly"]
    assert all("no file can be made" in f.why for f in found if f.code == "disk-readonly")


def test_a_folder_that_can_be_made_is_not_made_by_looking(tmp_path: Path) -> None:
    (disk, _) = doctor.disks(measure=False)
    assert not disk.refusal
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    assert not doctor.disks(measure=False)[0].refusal


def test_an_unknown_flavour_is_told_with_the_flag_to_give() -> None:
    with pytest.raises(BadInput, match="no flavour named 'metal'") as caught:
        doctor.examine("metal")
    assert caught.value.hint.startswith("--flavour NAME")
    assert "cpu" in caught.value.hint
    assert "rocm" in caught.value.hint
    assert "build" not in caught.value.hint
