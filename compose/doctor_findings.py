"""The doctor's judgement: facts in, findings out. Pure, so that boxes nobody has here can be tested.

Each finding has a stable code, says what was found, why it matters and which command mends it. Where a
bound comes from a public report, the report stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from compose.doctor_facts import MIB, PAGE, Facts, Node
from say import size

Severity = Literal["good", "note", "warning", "error"]
GIB = 1 << 30
TARGET = "gfx1151"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing the doctor found. `code` never changes its meaning; an error stops a deploy."""

    code: str
    severity: Severity
    what: str
    why: str = ""
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        """The finding as it stands in `doctor --json`."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the host is wanted for: `gpu` = a flavour that runs on the GPU; `docker_host` = DOCKER_HOST."""

    gpu: bool = False
    docker_host: str = ""

    def severity(self) -> Severity:
        """How bad a fault of the GPU is."""
        return "error" if self.gpu else "note"


def judge(facts: Facts, wish: Wish) -> list[Finding]:
    """All findings, in the order of the checks; what does not apply to the host is left out."""
    return [finding for check in CHECKS for finding in check(facts, wish)]


def version_tuple(text: str) -> tuple[int, ...]:
    """A version's numbers: "2.26.1" is (2, 26, 1)."""
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def check_docker(facts: Facts, wish: Wish) -> Iterator[Finding]:
    """The daemon answers and is new enough for BuildKit (20.10)."""
    engine = facts.engine
    if not engine.client:
        yield Finding(
            code="docker-missing",
            severity="error",
            what="Docker is not installed",
            why="images are built and started by a Docker engine",
            fix="./inv doctor --install",
        )
    elif engine.server is None and "permission denied" in engine.error:
        yield Finding(
            code="docker-permission",
            severity="error",
            what="the Docker daemon may not be used by this user",
            why=engine.error,
            fix="sudo usermod -aG docker $USER   (then log in again)",
        )
    elif engine.server is None:
        where = f" at DOCKER_HOST={wish.docker_host}" if wish.docker_host else ""
        yield Finding(
            code="docker-unreachable",
            severity="error",
            what=f"no Docker daemon answers{where}",
            why=engine.error or "it is not running",
            fix="correct DOCKER_HOST or start that daemon"
            if where
            else "./inv doctor --install   (starts it)",
        )
    elif version_tuple(engine.server) < (20, 10):
        yield Finding(
            code="docker-old",
            severity="error",
            what=f"Docker engine {engine.server} is too old",
            why="BuildKit with cache mounts needs 20.10",
            fix="upgrade the Docker engine",
        )
    else:
        yield Finding(code="docker", severity="good", what=f"Docker engine {engine.server}")


def check_plugins(facts: Facts, wish: Wish) -> Iterator[Finding]:
    """The client finds buildx and compose v2 (2.24 for `!override` and `up --wait` as used here)."""
    for name, found, least in (
        ("buildx", facts.engine.buildx, "0.10"),
        ("compose", facts.engine.compose, "2.24"),
    ):
        if found is None:
            yield Finding(
                code=f"{name}-missing",
                severity="error",
                what=f"docker {name} is not installed",
                why=f"the docker client finds no plugin docker-{name} in its cli-plugins folders",
                fix="./inv doctor --install",
            )
        elif version_tuple(found) < version_tuple(least):
            yield Finding(
                code=f"{name}-old",
                severity="error",
                what=f"docker {name} {found} is too old",
                why=f"{least} or newer is needed",
                fix="./inv doctor --install",
            )
        else:
            yield Finding(code=name, severity="good", what=f"docker {name} {found}")


def check_programs(facts: Facts, wish: Wish) -> Iterator[Finding]:
    """git applies the patch series; mmdebstrap makes base images where no registry answers."""
    if "git" not in facts.programs:
        yield Finding(
            code="git-missing",
            severity="error",
            what="git is not installed",
            why="the patch series is applied and proven with it",
            fix="./inv doctor --install",
        )
    if "mmdebstrap" not in facts.programs:
        yield Finding(
            code="mmdebstrap-missing",
            severity="note",
            what="mmdebstrap is not installed",
            why="it makes the base image where no registry can be reached",
            fix="./inv doctor --install   (Debian and its kin)",
        )


def check_rootless(facts: Facts, wish: Wish) -> Iterator[Finding]:
    """A rootless daemon maps groups to other numbers, so the device nodes' groups do not reach the server."""
    if facts.engine.rootless:
        yield Finding(
            code="docker-rootless",
            severity="warning" if wish.gpu else "note",
            what="the Docker daemon is rootless",
            why="group ids of the device nodes are mapped to others inside, so opening them may be refused",
            fix="use the system's daemon, or podman with group_add keep-groups (render --target quadlet)",
        )


def has_gpu(facts: Facts) -> bool:
    """Whether the host shows an AMD GPU at all, by nodes, sysfs or topology."""
    return bool(facts.nodes or facts.gpu_memory or facts.targets)


def _kind(facts: Facts, prefix: str) -> list[Node]:
    return [node for node in facts.nodes if node.path.startswith(prefix)]


def check_nodes(facts: Facts, wish: Wish) -> Iterator[Finding]:
    """/dev/kfd and a render node exist and can be opened; told apart from a container that hides them."""
    for name, prefix in (("kfd", "/dev/kfd"), ("render", "/dev/dri/renderD")):
        nodes = _kind(facts, prefix)
        if not nodes:
            yield Finding(
                code=f"{name}-absent",
                severity=wish.severity(),
                what=f"there is no {prefix}",
                why="without it only the cpu flavour runs",
                fix=_absent_fix(facts, name),
            )
        denied = [node for node in nodes if not node.opens]
        for node in denied:
            yield Finding(
                code=f"{name}-denied",
                severity=wish.severity(),
                what=f"{node.path} exists but cannot be opened (group {node.gid}, mode {node.mode:o})",
                why=_denied_why(facts),
                fix=_denied_fix(facts, node),
            )
        if nodes and not denied:
            groups = ", ".join(f"{node.path} group {node.gid}" for node in nodes)
            yield Finding(code=name, severity="good", what=groups)


def _absent_fix(facts: Facts, name: str) -> str:
    if facts.container:
        how = f"lxc.mount.entry for {name} on the host" if facts.container == "lxc" else "as a device"
        return f"pass it into this {facts.container} container ({how})"
    return "modprobe amdgpu; dmesg | grep -i amdgpu   (kfd needs CONFIG_HSA_AMD)"


def _denied_why(facts: Facts) -> str:
    if facts.container:
        return f"this {facts.container} container's device rules or user mapping refuse it"
    return "this user is not in the node's group; the daemon's containers get the numeric group"


def _denied_fix(facts: Facts, node: Node) -> str:
    if facts.container:
        return (
            "on the host: lxc.cgroup2.devices.allow for the node's major:minor, and an id map for its group"
        )
    return f"sudo usermod -aG {node.gid} $USER, or run as root"


def check_target(facts: Facts, wish: Wish) -> Iterator[Finding]:
    """The images carry code for gfx1151 only."""
    if TARGET in facts.targets:
        yield Finding(code="gpu", severity="good", what=f"{TARGET} (Strix Halo)")
    elif facts.targets:
        yield Finding(
            code="gpu-other",
            severity=wish.severity(),
            what=f"the GPU is {', '.join(facts.targets)}, not {TARGET}",
            why="the rocm flavour holds kernels for gfx1151 only",
            fix="./inv deploy --preset demo   (cpu flavour)",
        )
    elif wish.gpu and facts.nodes:
        yield Finding(
            code="gpu-unknown",
            severity="warning",
            what="the kernel names no GPU target",
            why="/sys/class/kfd is empty, so gfx1151 cannot be confirmed",
            fix="dmesg | grep -i -e amdgpu -e kfd",
        )


def installed_memory(facts: Facts) -> int:
    """Bytes of memory soldered in: what the system sees plus the carve-out, rounded up to 32 GiB."""
    seen = facts.memory.total + max((card.vram_total for card in facts.gpu_memory), default=0)
    return -(-seen // (32 * GIB)) * 32 * GIB


def gtt_parameters(installed: int) -> str:
    """The kernel parameters that lend all but 4 GiB to the GPU: 126976 MiB of 128 GiB, 94208 of 96."""
    mib = (installed - 4 * GIB) // MIB
    return f"amdgpu.gttsize={mib} ttm.pages_limit={mib * MIB // PAGE}"


def _boot_fix(facts: Facts, words: str) -> str:
    if facts.distribution.id == "fedora":
        return f'sudo grubby --update-kernel=ALL --args="{words}"   (then reboot)'
    return f"add {words} to GRUB_CMDLINE_LINUX in /etc/default/grub; sudo update-grub; reboot"


def check_gtt(facts: Facts, wish: Wish) -> Iterator[Finding]:
    """Both parameters, and in agreement.

    One alone leaves ROCm half of the memory on some kernels (kyuz0/amd-strix-halo-toolboxes#98); a
    pages_limit one digit short crashed (#95 there).
    """
    if not (has_gpu(facts) or wish.gpu):
        return
    line = facts.command_line
    fix = _boot_fix(facts, gtt_parameters(installed_memory(facts)))
    bad: Severity = "warning"
    if line.gttsize_mib is None and line.pages_limit is None:
        yield Finding(
            code="gtt-default",
            severity=bad,
            what="neither amdgpu.gttsize nor ttm.pages_limit is set",
            why="the GPU then gets about half of the memory",
            fix=fix,
        )
    elif line.gttsize_mib is None or line.pages_limit is None:
        alone = "ttm.pages_limit" if line.gttsize_mib is None else "amdgpu.gttsize"
        yield Finding(
            code="gtt-one-parameter",
            severity=bad,
            what=f"only {alone} is set",
            why="on some kernels one without the other leaves the GPU half of the memory",
            fix=fix,
        )
    elif line.gttsize_mib * MIB != line.pages_limit * PAGE:
        yield Finding(
            code="gtt-disagree",
            severity=bad,
            what=f"amdgpu.gttsize is {line.gttsize_mib} MiB, but ttm.pages_limit is"
            f" {line.pages_limit * PAGE // MIB} MiB",
            why="they must say the same: gttsize in MiB x 256 = pages_limit in pages of 4 KiB",
            fix=fix,
        )
    else:
        yield Finding(
            code="gtt", severity="good", what=f"GTT limit {line.gttsize_mib} MiB by both parameters"
        )


def check_visible(facts: Facts, wish: Wish) -> Iterator[Finding]:
    """What the driver really offers: GTT at least 0.8 of what is installed, and a small carve-out."""
    installed = installed_memory(facts)
    for card in facts.gpu_memory:
        yield Finding(
            code="gpu-memory",
            severity="good",
            what=f"{card.card}: GTT {size(card.gtt_total)} ({size(card.gtt_used)} used),"
            f" VRAM {size(card.vram_total)} ({size(card.vram_used)} used)",
        )
        if card.gtt_total + card.vram_total < 0.8 * installed:
            yield Finding(
                code="gtt-visible",
                severity="warning",
                what=f"{card.card} sees {size(card.gtt_total + card.vram_total)} of {size(installed)}",
                why="a larger model ends in an allocation failure; old kernels cut it even with both"
                " parameters set",
                fix=_boot_fix(facts, gtt_parameters(installed)),
            )
        if card.vram_total > 1 * GIB:
            yield Finding(
                code="vram-carveout",
                severity="note",
                what=f"the firmware keeps {size(card.vram_total)} as VRAM",
                why="that memory is lost to everything else; 0.5 GiB is enough, GTT does the rest",
                fix="set UMA frame buffer size to the smallest value in the firmware setup",
            )


def check_kernel(facts: Facts, wish: Wish) -> Iterator[Finding]:
    """6.16.9 shows the GPU more than 15.5 GB; 6.18.4 (with ROCm >= 7.2) counts VGPRs right: TheRock#2991."""
    if not (has_gpu(facts) or wish.gpu) or not facts.kernel.text:
        return
    numbers, text = facts.kernel.numbers, facts.kernel.text
    ubuntu_oem = text.startswith("6.17.0-") and text.endswith("-oem") and int(text.split("-")[1]) >= 1018
    if numbers < (6, 16, 9):
        yield Finding(
            code="kernel-old",
            severity="warning",
            what=f"kernel {text} is older than 6.16.9",
            why="ROCm may see 15.5 GB only (ROCm/legacy-rocm-build#5444)",
            fix="install kernel 6.18.4 or newer",
        )
    elif numbers < (6, 18, 4) and not ubuntu_oem:
        yield Finding(
            code="kernel-vgpr",
            severity="warning",
            what=f"kernel {text} is older than 6.18.4",
            why="the right register count of gfx1151 needs this kernel and ROCm 7.2 or newer, both",
            fix="install kernel 6.18.4 or newer (Ubuntu: linux-oem 6.17.0-1018 or newer)",
        )
    else:
        yield Finding(code="kernel", severity="good", what=f"kernel {text}")
    if facts.command_line.iommu != "off":
        yield Finding(
            code="iommu-on",
            severity="note",
            what=f"IOMMU is {facts.command_line.iommu or 'at its default'}",
            why="prompt processing was measured 13 to 16 % faster with amd_iommu=off",
            fix=_boot_fix(facts, "amd_iommu=off"),
        )


BAD_RELEASE, BAD_MES = 20251125, 0x83


def check_firmware(facts: Facts, wish: Wish) -> Iterator[Finding]:
    """linux-firmware 20251125 (MES 0x83) hangs this GPU (ROCm/legacy-rocm-build#5724)."""
    firmware = facts.firmware
    if firmware.mes == BAD_MES or (firmware.mes is None and firmware.release == BAD_RELEASE):
        stopgap = facts.command_line.words.get("amdgpu.cwsr_enable") == "0"
        found = f"MES 0x{firmware.mes:x}" if firmware.mes else f"linux-firmware {firmware.release}"
        yield Finding(
            code="firmware-bad",
            severity="warning" if stopgap or not wish.gpu else "error",
            what=f"{found} is known to hang the GPU" + (" (amdgpu.cwsr_enable=0 is set)" if stopgap else ""),
            why="jobs stop for ever under load",
            fix="linux-firmware 20260108 or newer, or 20251111; until then boot with amdgpu.cwsr_enable=0",
        )


def corrupting(env: Mapping[str, str]) -> list[Finding]:
    """Environment variables that make the engine wrong or slow, of a host or a preset's `environment`."""
    found: list[Finding] = []
    for name in ("GGML_CUDA_ENABLE_UNIFIED_MEMORY", "GGML_HIP_ENABLE_UNIFIED_MEMORY"):
        if name in env:
            found.append(
                Finding(
                    code="env-unified-memory",
                    severity="error",
                    what=f"{name} is set (to {env[name]!r})",
                    why="its presence alone switches it on, even as 0: the weights move out of GTT into"
                    " 77 GB of plain memory, and garbled text was reported",
                    fix=f"unset {name}",
                )
            )
    if "HSA_OVERRIDE_GFX_VERSION" in env:
        found.append(
            Finding(
                code="env-gfx-override",
                severity="error",
                what=f"HSA_OVERRIDE_GFX_VERSION is set (to {env['HSA_OVERRIDE_GFX_VERSION']!r})",
                why="ROCm 7.2 and newer know gfx1151; the override makes it run code for another GPU",
                fix="unset HSA_OVERRIDE_GFX_VERSION",
            )
        )
    for name, value, why in SLOWING:
        if env.get(name) == value:
            found.append(
                Finding(
                    code="env-slowing",
                    severity="warning",
                    what=f"{name}={value} is set",
                    why=why,
                    fix=f"unset {name}",
                )
            )
    return found


SLOWING = (
    ("LLAMA_ATTN_ROT_DISABLE", "1", "a quantised KV cache loses quality without the rotation"),
    (
        "HSA_XNACK",
        "1",
        "together with HSA_ENABLE_SDMA=0 it was reported to hang lazy reading of the n-gram table",
    ),
    (
        "HIP_LAUNCH_BLOCKING",
        "1",
        "every kernel waits for the one before; it hides races instead of curing them",
    ),
)


def check_environment(facts: Facts, wish: Wish) -> Iterator[Finding]:
    """The shell's own variables: containers get none of them, so they are no error here."""
    for finding in corrupting(facts.environment):
        yield Finding(
            **{
                **asdict(finding),
                "severity": "warning",
                "why": finding.why + " (this shell only: a"
                " container gets the preset's environment, which is refused with it)",
            }
        )


def check_memory(facts: Facts, wish: Wish) -> Iterator[Finding]:
    """MemAvailable, swap in use, and limits of cgroups: on us, and on containers, near all there is."""
    memory = facts.memory
    available = memory.available if facts.own_limit is None else min(memory.available, facts.own_limit)
    yield Finding(
        code="memory-low" if available < 2 * GIB else "memory",
        severity="warning" if available < 2 * GIB else "good",
        what=f"{size(available)} of {size(memory.total)} available",
        why="less than 2 GiB is left for a server" if available < 2 * GIB else "",
        fix="stop other programs" if available < 2 * GIB else "",
    )
    if facts.own_limit is not None and facts.own_limit < memory.total:
        yield Finding(
            code="cgroup-limit",
            severity="warning",
            what=f"this system may use {size(facts.own_limit)} only",
            why="a cgroup above us is limited; MemAvailable does not show it",
            fix="raise the limit of the slice or container, or plan with --free",
        )
    used = memory.swap_total - memory.swap_free
    if used > 1 * GIB:
        yield Finding(
            code="swap-used",
            severity="warning",
            what=f"{size(used)} of swap are in use",
            why="a server whose pages are swapped out answers in minutes",
            fix="sudo swapoff -a && sudo swapon -a",
        )


def check_limits(facts: Facts, wish: Wish) -> Iterator[Finding]:
    """A limit near MemTotal freezes the host before it bites: Nathanw1014/strix-halo-llamacpp#8."""
    for limit in facts.limits:
        finding = limit_finding(limit.container, limit.limit, facts.memory.total)
        if finding is not None:
            yield finding


def limit_finding(container: str, limit: int, total: int) -> Finding | None:
    """A warning where a memory limit leaves the host less than 4 GiB. All values in bytes."""
    if limit <= total - 4 * GIB:
        return None
    return Finding(
        code="container-limit",
        severity="warning",
        what=f"{container} may use {size(limit)} of {size(total)}",
        why="the host freezes before such a limit bites, and GTT does not count in it",
        fix=f"set the limit to {size(max(total - 8 * GIB, total // 2))} or less",
    )


def check_others(facts: Facts, wish: Wish) -> Iterator[Finding]:
    """Other programs that hold models."""
    for process in facts.processes:
        if process.pid not in facts.own_pids:
            yield Finding(
                code="other-server",
                severity="warning",
                what=f"{process.name} runs (pid {process.pid}, {size(process.rss)} besides GTT)",
                why="its memory is missing from the plan, and it may own the port",
                fix=f"stop it, if it is not meant to run: kill {process.pid}",
            )


def check_disks(facts: Facts, wish: Wish) -> Iterator[Finding]:
    """Room for sources, build and models; reading speed decides how long a model loads."""
    for disk in facts.disks:
        if disk.refusal:
            yield Finding(
                code="disk-readonly",
                severity="error",
                what=f"{disk.path} cannot be written",
                why=f"{disk.purpose} go there, but no file can be made: {disk.refusal}",
                fix="point HALOFORGE_HOME / HALOFORGE_MODELS to a folder of your own, or change its owner",
            )
            continue
        least = 2 * GIB
        low = disk.free < least
        speed = f", reads {disk.read_mib_s:.0f} MiB/s" if disk.read_mib_s else ""
        yield Finding(
            code="disk-full" if low else "disk",
            severity="error" if low else "good",
            what=f"{size(disk.free)} free for {disk.purpose} in {disk.path}{speed}",
            why=f"{size(least)} at least are needed" if low else "",
            fix="free some space, or point HALOFORGE_HOME / HALOFORGE_MODELS elsewhere" if low else "",
        )
        if (
            disk.read_mib_s
            and disk.read_mib_s < 500
            and disk.purpose == "models"
            and (wish.gpu or has_gpu(facts))
        ):
            yield Finding(
                code="disk-slow",
                severity="warning",
                what=f"models are read at {disk.read_mib_s:.0f} MiB/s",
                why=f"104 GiB take {104 * 1024 / disk.read_mib_s / 60:.0f} minutes to load; an NVMe drive"
                " does 5000 MiB/s",
                fix="put HALOFORGE_MODELS on a local NVMe drive",
            )


def check_power(facts: Facts, wish: Wish) -> Iterator[Finding]:
    """Settings that cost speed on this kind of box; of no matter elsewhere."""
    if not has_gpu(facts):
        return
    power = facts.power
    rows = (
        (
            power.governor not in ("", "performance"),
            "governor",
            f"CPU governor is {power.governor}",
            "sudo cpupower frequency-set -g performance",
        ),
        (
            power.profile not in ("", "performance"),
            "platform-profile",
            f"platform profile is {power.profile}",
            "echo performance | sudo tee /sys/firmware/acpi/platform_profile",
        ),
        (
            power.huge_pages == "never",
            "huge-pages",
            "transparent huge pages are off",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        (
            any(level not in ("auto", "high", "profile_peak") for level in power.dpm),
            "gpu-clock",
            f"GPU performance level is {', '.join(power.dpm)}",
            "echo auto | sudo tee /sys/class/drm/card*/device/power_dpm_force_performance_level",
        ),
    )
    for wrong, code, what, fix in rows:
        if wrong:
            yield Finding(
                code=code, severity="note", what=what, why="it costs speed, not correctness", fix=fix
            )


def check_selinux(facts: Facts, wish: Wish) -> Iterator[Finding]:
    """SELinux refuses `map` on /dev/kfd in a container, which shows up as "Memory critical"."""
    mode, devices = facts.selinux
    if mode == "enforcing" and devices is False and (has_gpu(facts) or wish.gpu):
        yield Finding(
            code="selinux-devices",
            severity="error" if wish.gpu else "warning",
            what="SELinux keeps containers from using devices",
            why="container_use_devices is off, so mapping /dev/kfd is refused",
            fix="sudo setsebool -P container_use_devices=true",
        )


CHECKS: tuple[Callable[[Facts, Wish], Iterator[Finding]], ...] = (
    check_docker,
    check_plugins,
    check_programs,
    check_rootless,
    check_nodes,
    check_target,
    check_gtt,
    check_visible,
    check_kernel,
    check_firmware,
    check_selinux,
    check_environment,
    check_memory,
    check_limits,
    check_others,
    check_disks,
    check_power,
)
