"""What the doctor knows about a host: each fact is one command and one pure parser of what it prints.

The commands are constants, so running them through `sh -c` (for globs and `||`) lets nothing in from
outside, and a user can paste them. A file or program that is not there gives no output, and each parser
says with None or an empty value that the fact is not known. Sizes are bytes unless a name says otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from command import run

T = TypeVar("T")
MIB = 1 << 20
PAGE = 4096


@dataclass(frozen=True)
class Fact(Generic[T]):
    """A command and the parser of its output."""

    command: str
    parse: Callable[[str], T]

    def ask(self) -> T:
        """Run the command here and parse what it prints; an error of the command means "not known"."""
        return self.parse(run(["sh", "-c", self.command], timeout=30, check=False).out)


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """The distribution, by /etc/os-release: `id` is debian, fedora, ubuntu ...; codename may be empty."""

    id: str
    like: tuple[str, ...]
    version: str
    codename: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """The running kernel's release."""

    text: str
    numbers: tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class KernelParameters:
    """The kernel command line, as far as it decides what the GPU may use."""

    gttsize_mib: int | None
    pages_limit: int | None
    iommu: str | None
    words: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """/proc/meminfo in bytes."""

    total: int
    available: int
    swap_total: int
    swap_free: int


@dataclass(frozen=True, kw_only=True)
class GpuMemory:
    """One card's memory by sysfs, in bytes: GTT is main memory lent to the GPU, VRAM the carve-out."""

    card: str
    gtt_total: int
    gtt_used: int
    vram_total: int
    vram_used: int


@dataclass(frozen=True, kw_only=True)
class Node:
    """A device node: whether it can be opened for reading and writing, and its numeric group."""

    path: str
    opens: bool
    gid: int
    mode: int


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The Docker daemon and the client's plugins; None where there is none. `client`: docker is on PATH."""

    client: bool = False
    server: str | None = None
    buildx: str | None = None
    compose: str | None = None
    security: tuple[str, ...] = ()
    cgroup: str = ""
    root: str = ""
    error: str = ""

    @property
    def rootless(self) -> bool:
        """Whether the daemon runs as a plain user."""
        return any("rootless" in option for option in self.security)


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process that serves models: its id, name and resident set in bytes."""

    pid: int
    name: str
    rss: int


@dataclass(frozen=True, kw_only=True)
class Firmware:
    """The linux-firmware release as packaged (a date, or None) and the MES version that is loaded."""

    release: int | None
    mes: int | None


@dataclass(frozen=True, kw_only=True)
class Power:
    """Settings that cost speed: each is the kernel's word, or empty."""

    governor: str = ""
    profile: str = ""
    dpm: tuple[str, ...] = ()
    huge_pages: str = ""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A running container's memory limit in bytes."""

    container: str
    limit: int


def parse_os_release(out: str) -> Distribution:
    """/etc/os-release."""
    values: dict[str, str] = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', out, re.M))
    return Distribution(
        id=values.get("ID", ""),
        like=tuple(values.get("ID_LIKE", "").split()),
        version=values.get("VERSION_ID", ""),
        codename=values.get("VERSION_CODENAME", ""),
        name=values.get("PRETTY_NAME") or values.get("ID") or "this system",
    )


def parse_kernel(out: str) -> Kernel:
    """`uname -r`: the first two or three numbers, so that 6.18-rc1 is (6, 18, 0); unreadable is (0, 0, 0)."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", out.strip())
    numbers = (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (0, 0, 0)
    return Kernel(text=out.strip(), numbers=numbers)


def parse_command_line(out: str) -> KernelParameters:
    """/proc/cmdline; the last of a repeated parameter counts, as it does for the kernel."""
    words = {key: value for key, _, value in (word.partition("=") for word in out.split())}
    gtt = words.get("amdgpu.gttsize", "")
    pages = words.get("ttm.pages_limit", "")
    iommu = words.get("amd_iommu") or words.get("iommu") or None
    return KernelParameters(
        gttsize_mib=int(gtt) if gtt.isdigit() else None,
        pages_limit=int(pages) if pages.isdigit() else None,
        iommu=iommu,
        words={
            key: value for key, value in words.items() if re.match(r"amdgpu\.|ttm\.|amd_iommu|iommu", key)
        },
    )


def parse_memory(out: str) -> Memory:
    """/proc/meminfo; its kB are KiB. A kernel without MemAvailable counts as having none."""
    kib = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", out, re.M)}
    return Memory(
        total=kib.get("MemTotal", 0) * 1024,
        available=kib.get("MemAvailable", 0) * 1024,
        swap_total=kib.get("SwapTotal", 0) * 1024,
        swap_free=kib.get("SwapFree", 0) * 1024,
    )


def parse_gpu_memory(out: str) -> tuple[GpuMemory, ...]:
    """Lines PATH:BYTES of sysfs's mem_info files; cards without GTT (not amdgpu) do not appear."""
    cards: dict[str, dict[str, int]] = {}
    for card, key, value in re.findall(r"/(card\d+)/device/mem_info_(\w+):(\d+)$", out, re.M):
        cards.setdefault(card, {})[key] = int(value)
    keys = ("gtt_total", "gtt_used", "vram_total", "vram_used")
    return tuple(
        GpuMemory(card=card, **{key: values.get(key, 0) for key in keys})
        for card, values in sorted(cards.items())
        if "gtt_total" in values
    )


def parse_nodes(out: str) -> tuple[Node, ...]:
    """Lines PATH open|denied GID MODE (octal)."""
    rows = re.findall(r"^(/dev/\S+) (open|denied) (\d+) ([0-7]+)$", out, re.M)
    return tuple(Node(path=p, opens=o == "open", gid=int(g), mode=int(m, 8)) for p, o, g, m in rows)


def parse_targets(out: str) -> tuple[str, ...]:
    """gfx targets of the KFD topology: 110501 is gfx1151 (major 11, minor 5, stepping 1); 0 is a CPU."""
    numbers = [int(n) for n in re.findall(r"gfx_target_version (\d+)", out)]
    return tuple(f"gfx{n // 10000}{n // 100 % 100}{n % 100:x}" for n in numbers if n)


def parse_firmware(out: str) -> Firmware:
    """Package versions of the firmware (a date of eight digits), and debugfs's line about MES."""
    dates = [int(d) for d in re.findall(r"(?<!\d)(20\d{6})(?!\d)", out)]
    mes = re.search(r"^.*\bMES\b.*firmware version: 0x([0-9a-fA-F]+)", out, re.M)
    return Firmware(release=max(dates, default=None), mes=int(mes[1], 16) & 0xFFF if mes else None)


def parse_container(out: str) -> str:
    """The kind of container that this very system is (lxc, docker, podman ...), or ""."""
    word = out.strip().splitlines()[0] if out.strip() else ""
    return "" if word == "none" else word.removeprefix("container=")


def parse_engine(out: str) -> Engine:
    """Lines KEY=VALUE: info is a JSON document, error the client's words, the others are version texts."""
    values = dict(re.findall(r"^(info|error|buildx|compose)=(.*)$", out, re.M))
    try:
        info: dict[str, Any] = json.loads(values.get("info") or "{}")
    except json.JSONDecodeError:
        info = {}
    return Engine(
        server=info.get("ServerVersion") or None,
        buildx=_version(values.get("buildx", "")),
        compose=_version(values.get("compose", "")),
        security=tuple(info.get("SecurityOptions") or ()),
        cgroup=info.get("CgroupVersion") or "",
        root=info.get("DockerRootDir") or "",
        client=bool(info),
        error="; ".join(info.get("ServerErrors") or ()) or values.get("error", ""),
    )


def _version(text: str) -> str | None:
    found = re.search(r"\d+\.\d+(\.\d+)?", text)
    return found[0] if found else None


SERVERS = (
    "llama-server",
    "llama-swap",
    "ollama",
    "lemonade",
    "lemond",
    "koboldcpp",
    "vllm",
    "gufo",
    "halogen",
)
"""Names (as the kernel cuts them, 15 bytes) of programs that hold models in memory."""


def parse_processes(out: str) -> tuple[Process, ...]:
    """Lines PATH:KEY:<tab>VALUE of /proc/*/status."""
    found: dict[int, dict[str, str]] = {}
    for pid, key, value in re.findall(r"^/proc/(\d+)/status:(Name|VmRSS):\s+(.*)$", out, re.M):
        found.setdefault(int(pid), {})[key] = value
    return tuple(
        Process(pid=pid, name=values["Name"], rss=int(values.get("VmRSS", "0").split()[0]) * 1024)
        for pid, values in sorted(found.items())
        if values.get("Name", "").startswith(SERVERS)
    )


def parse_power(out: str) -> Power:
    """Lines PATH:VALUE of the governor, platform profile, DPM level and transparent huge pages."""
    values = re.findall(r"^(\S+?):(.*)$", out, re.M)

    def of(name: str) -> list[str]:
        return [value.strip() for path, value in values if path.endswith(name)]

    huge = re.search(r"\[(\w+)\]", " ".join(of("transparent_hugepage/enabled")))
    return Power(
        governor=next(iter(of("scaling_governor")), ""),
        profile=next(iter(of("platform_profile")), ""),
        dpm=tuple(of("power_dpm_force_performance_level")),
        huge_pages=huge[1] if huge else "",
    )


def parse_selinux(out: str) -> tuple[str, bool | None]:
    """getenforce, then getsebool: the mode in lower case ("" = no SELinux), and container_use_devices."""
    mode = re.search(r"^(Enforcing|Permissive|Disabled)$", out, re.M)
    devices = re.search(r"container_use_devices --> (on|off)", out)
    return (mode[1].lower() if mode else "", devices[1] == "on" if devices else None)


def parse_limits(out: str) -> tuple[Limit, ...]:
    """Lines /NAME BYTES; 0 = no limit, which does not appear."""
    rows = re.findall(r"^/(\S+) (\d+)$", out, re.M)
    return tuple(Limit(container=name, limit=int(value)) for name, value in rows if int(value))


def parse_own_limit(out: str) -> int | None:
    """The memory limit of the cgroup we run in, in bytes; None = no limit (v2 says max, v1 a huge number)."""
    numbers = [int(word) for word in out.split() if word.isdigit()]
    return min((n for n in numbers if n < 1 << 60), default=None)


def parse_programs(out: str) -> frozenset[str]:
    """Paths of programs, one a line: their names."""
    return frozenset(line.rpartition("/")[2] for line in out.split())


def parse_environment(out: str) -> dict[str, str]:
    """`env`: names and values."""
    return dict(re.findall(r"^([A-Za-z_]\w*)=(.*)$", out, re.M))


def parse_pids(out: str) -> frozenset[int]:
    """Process ids, any number a line."""
    return frozenset(int(word) for word in out.split() if word.isdigit())


DISTRIBUTION = Fact("cat /etc/os-release 2>/dev/null", parse_os_release)
KERNEL = Fact("uname -r", parse_kernel)
COMMAND_LINE = Fact("cat /proc/cmdline", parse_command_line)
MEMORY = Fact("cat /proc/meminfo", parse_memory)
GPU_MEMORY = Fact("grep -Hs . /sys/class/drm/card*/device/mem_info_*", parse_gpu_memory)
NODES = Fact(
    'for n in /dev/kfd /dev/dri/renderD*; do [ -e "$n" ] || continue; o=open; '
    '(: <>"$n") 2>/dev/null || o=denied; echo "$n $o $(stat -c "%g %a" "$n")"; done',
    parse_nodes,
)
TARGETS = Fact("grep -hs gfx_target_version /sys/class/kfd/kfd/topology/nodes/*/properties", parse_targets)
FIRMWARE = Fact(
    "grep -hs MES /sys/kernel/debug/dri/*/amdgpu_firmware_info; "
    "rpm -q amd-gpu-firmware linux-firmware 2>/dev/null; "
    "dpkg-query -W firmware-amd-graphics linux-firmware 2>/dev/null",
    parse_firmware,
)
CONTAINER = Fact(
    "systemd-detect-virt --container 2>/dev/null || "
    "tr '\\0' '\\n' 2>/dev/null </proc/1/environ | grep ^container=",
    parse_container,
)
ENGINE = Fact(
    "i=$(docker info --format '{{json .}}' 2>/dev/null) || e=$(docker info 2>&1 >/dev/null | tail -n 1); "
    'echo "info=$i"; echo "error=$e"; '
    'echo "buildx=$(docker buildx version 2>/dev/null)"; '
    'echo "compose=$(docker compose version --short 2>/dev/null)"',
    parse_engine,
)
PROCESSES = Fact("grep -Hs -e ^Name: -e ^VmRSS: /proc/[0-9]*/status", parse_processes)
POWER = Fact(
    "grep -Hs . /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor /sys/firmware/acpi/platform_profile "
    "/sys/class/drm/card*/device/power_dpm_force_performance_level "
    "/sys/kernel/mm/transparent_hugepage/enabled",
    parse_power,
)
SELINUX = Fact("getenforce 2>/dev/null; getsebool container_use_devices 2>/dev/null", parse_selinux)
LIMITS = Fact(
    "docker ps -q 2>/dev/null | xargs -r docker inspect -f '{{.Name}} {{.HostConfig.Memory}}'", parse_limits
)
OWN_LIMIT = Fact(
    "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null", parse_own_limit
)
ENVIRONMENT = Fact("env", parse_environment)
PROGRAMS = Fact("for p in git mmdebstrap; do command -v $p; done", parse_programs)
OWN_PIDS = Fact(
    # Not `docker top`: it runs the host's ps, which a small Debian lacks.
    "for p in $(docker ps -q --filter label=io.haloforge.preset 2>/dev/null | "
    "xargs -r docker inspect -f '{{.State.Pid}}'); do echo $p; cat /proc/$p/task/$p/children; done",
    parse_pids,
)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything the judgement needs; the defaults are those of a plain machine without this GPU."""

    distribution: Distribution
    memory: Memory
    engine: Engine = field(default_factory=Engine)
    kernel: Kernel = field(default_factory=lambda: Kernel(text="", numbers=(0, 0, 0)))
    command_line: KernelParameters = field(
        default_factory=lambda: KernelParameters(gttsize_mib=None, pages_limit=None, iommu=None, words={})
    )
    gpu_memory: tuple[GpuMemory, ...] = ()
    nodes: tuple[Node, ...] = ()
    targets: tuple[str, ...] = ()
    firmware: Firmware = field(default_factory=lambda: Firmware(release=None, mes=None))
    container: str = ""
    processes: tuple[Process, ...] = ()
    own_pids: frozenset[int] = frozenset()
    power: Power = field(default_factory=Power)
    selinux: tuple[str, bool | None] = ("", None)
    limits: tuple[Limit, ...] = ()
    own_limit: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    programs: frozenset[str] = frozenset()
    disks: tuple[Disk, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Free bytes where something is to be written; `read_mib_s` = reading past the cache, if measured.

    `refusal` is what the system says to a file made there; empty where that works, be the disk full or not.
    """

    purpose: str
    path: str
    free: int
    refusal: str = ""
    read_mib_s: float | None = None
