"""The doctor: looks at the host, says what it lacks and why that matters, and installs it if asked."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import paths
from compose import doctor_engine as engine
from compose import doctor_facts as facts
from compose.doctor_findings import TARGET, Finding, Wish, corrupting, judge, limit_finding
from errors import HostLacks
from images import flavours
from say import step, warn

__all__ = [
    "Finding",
    "corrupting",
    "examine",
    "gate",
    "gpu_ready",
    "install",
    "limit_finding",
    "report",
    "stop_engine",
]

SPEED_SAMPLE = 64 << 20
"""Bytes written and read back to measure a disk: below the second on anything that serves models well."""


ALWAYS: dict[str, facts.Fact[Any]] = {
    "distribution": facts.DISTRIBUTION,
    "memory": facts.MEMORY,
    "engine": facts.ENGINE,
    "kernel": facts.KERNEL,
    "command_line": facts.COMMAND_LINE,
    "gpu_memory": facts.GPU_MEMORY,
    "nodes": facts.NODES,
    "targets": facts.TARGETS,
    "container": facts.CONTAINER,
    "own_limit": facts.OWN_LIMIT,
    "selinux": facts.SELINUX,
    "programs": facts.PROGRAMS,
    "firmware": facts.FIRMWARE,
}
ADVISING: dict[str, facts.Fact[Any]] = {
    "processes": facts.PROCESSES,
    "own_pids": facts.OWN_PIDS,
    "power": facts.POWER,
    "limits": facts.LIMITS,
}


def gather(*, quick: bool = False) -> facts.Facts:
    """Ask the host everything, all questions at once.

    Args:
        quick: leave out what only advises (speed of the disk, other servers, power, limits).
    """
    asked = ALWAYS if quick else ALWAYS | ADVISING
    with ThreadPoolExecutor(max_workers=len(asked)) as pool:
        answers = {name: pool.submit(fact.ask) for name, fact in asked.items()}
    told = {name: answer.result() for name, answer in answers.items()}
    return facts.Facts(**told, environment=dict(os.environ), disks=disks(measure=not quick))


def disks(*, measure: bool) -> tuple[facts.Disk, ...]:
    """Free space where Haloforge writes; reading speed where models lie, if it can be measured there."""
    return (
        _disk("sources and results", paths.home(), measure=False),
        _disk("models", paths.models(), measure=measure),
    )


def _disk(purpose: str, path: Path, *, measure: bool) -> facts.Disk:
    there = _existing(path)
    free = shutil.disk_usage(there).free
    return facts.Disk(
        purpose=purpose,
        path=str(path),
        free=free,
        refusal=_refusal(there),
        read_mib_s=_read_speed(there) if measure and free > 4 * SPEED_SAMPLE else None,
    )


def _refusal(folder: Path) -> str:
    """Why no file can be made in a folder. Permissions alone do not tell: root may write to all of /proc."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return "" if full else f"{error.strerror or error} ({folder})"


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


def _read_speed(folder: Path) -> float | None:
    """MiB/s of reading a file just written, past the page cache (O_DIRECT); None where that is refused."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".haloforge-speed-") as file:
            file.write(os.urandom(1 << 20) * (SPEED_SAMPLE >> 20))
            file.flush()
            os.fsync(file.fileno())
            return _read_direct(file.name)
    except OSError:
        return None


def _read_direct(name: str) -> float:
    import mmap

    block = 8 << 20
    buffer = mmap.mmap(-1, block)  # page-aligned, as O_DIRECT demands
    handle = os.open(name, os.O_RDONLY | os.O_DIRECT)
    try:
        began = time.perf_counter()
        while os.readv(handle, [buffer]) == block:
            pass
        return (SPEED_SAMPLE >> 20) / (time.perf_counter() - began)
    finally:
        os.close(handle)


def examine(flavour: str | None = None, *, quick: bool = False) -> list[Finding]:
    """Look at the host.

    Args:
        flavour: what is to run; a GPU flavour turns faults of the GPU into errors.
        quick: only what can stop a deploy; below a second.

    Raises:
        BadInput: there is no such flavour.
    """
    gpu = flavour is not None and flavours.load(flavour).device is not None
    wish = Wish(gpu=gpu, docker_host=os.environ.get("DOCKER_HOST", ""))
    return judge(gather(quick=quick), wish)


def gpu_ready() -> bool:
    """Whether a gfx1151 GPU is here with a KFD and a render node that can be opened."""
    nodes = [node.path for node in facts.NODES.ask() if node.opens]
    both = any(p == "/dev/kfd" for p in nodes) and any(p.startswith("/dev/dri/renderD") for p in nodes)
    return both and TARGET in facts.TARGETS.ask()


def install() -> None:
    """Install a Docker engine with buildx and compose where they are missing, and start the daemon.

    Raises:
        HostLacks: packages or the daemon cannot be had; see `doctor_engine`.
    """
    codes = {finding.code for finding in examine(quick=True)}
    needs = needed(codes, remote=bool(os.environ.get("DOCKER_HOST")), daemon=engine.daemon() is not None)
    if needs:
        engine.install(facts.DISTRIBUTION.ask(), needs)
    if not os.environ.get("DOCKER_HOST") and "docker-permission" not in codes:
        engine.start()


def needed(codes: Collection[str], *, remote: bool, daemon: bool) -> set[str]:
    """What to install for findings' codes: engine, client, buildx, compose, git, mmdebstrap.

    Args:
        remote: DOCKER_HOST names a daemon elsewhere, so a client is enough.
        daemon: a dockerd is installed here.
    """
    needs = {word.rpartition("-")[0] for word in codes if word.endswith(("-missing", "-old"))}
    needs &= {"buildx", "compose", "git", "mmdebstrap"}
    if remote and "docker-missing" in codes:
        needs.add("client")
    if not remote and ("docker-old" in codes or (not daemon and "docker" not in codes)):
        needs.add("engine")
    return needs


def gate(flavour: str | None = None, *, install_missing: bool = False) -> list[Finding]:
    """The doctor's word before a deploy: warnings are printed, errors stop it.

    A daemon that an earlier run of ours started by hand is started again; nothing else is changed
    without `install_missing`.

    Raises:
        HostLacks: what the host lacks, all of it, each with its command.
    """
    if install_missing:
        install()
    elif engine.started_before() and not os.environ.get("DOCKER_HOST"):
        engine.start()
    findings = examine(flavour, quick=True)
    for finding in findings:
        if finding.severity == "warning":
            warn(f"{finding.what}: {finding.why}" + (f"; {finding.fix}" if finding.fix else ""))
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        raise HostLacks(
            "; ".join(error.what for error in errors),
            why="\n        ".join(f"{error.code}: {error.why}" for error in errors),
            hint="\n        ".join(dict.fromkeys(error.fix for error in errors)),
        )
    step("doctor", "; ".join(f.what for f in findings if f.severity == "good" and f.code in SHOWN))
    return findings


SHOWN = ("docker", "buildx", "compose", "gpu", "memory")


def stop_engine() -> bool:
    """End the Docker daemon if we started it; True if we did."""
    return engine.stop()


MARK = {"good": "ok", "note": "note", "warning": "warning", "error": "error"}


def report(findings: Sequence[Finding]) -> str:
    """The findings for people: one line each, why and fix below what is not good."""
    lines = []
    for finding in findings:
        lines.append(f"{MARK[finding.severity]:>8}  {finding.what}  [{finding.code}]")
        if finding.severity != "good":
            lines += [f"          why:  {finding.why}"] if finding.why else []
            lines += [f"          next: {finding.fix}"] if finding.fix else []
    return "\n".join(lines)
