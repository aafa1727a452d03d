"""What rendering needs to know of the host: device nodes with their group numbers, limits, who we are.

Each fact is read once at the edge and parsed by a pure function, so that recorded output of other
machines tests it.
"""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import paths

IMAGE_UID: Final = 10001
"""The user of the images; a caller that is not root runs the engine as itself instead."""
_CAP_SYS_RESOURCE: Final = 24


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device node and the number of the group that may use it."""

    path: str
    gid: int


@dataclass(frozen=True, kw_only=True)
class Host:
    """The facts that a rendered file depends on.

    `memlock` is the most that a container may lock in bytes, None for no limit; `selinux` whether it is
    enforced, which keeps a container from models and device nodes; `uid` and `gid` are
    whom the engine runs as; `home` is where deployments are kept.
    """

    home: Path
    devices: tuple[Device, ...] = field(default=())
    memlock: int | None = None
    selinux: bool = False
    uid: int = IMAGE_UID
    gid: int = IMAGE_UID

    @property
    def groups(self) -> tuple[int, ...]:
        """The groups that own the device nodes; two nodes may have two groups."""
        return tuple(sorted({device.gid for device in self.devices}))


def facts(dev: Path = Path("/dev")) -> Host:
    """Read the facts of this host."""
    uid, gid = os.getuid(), os.getgid()
    return Host(
        home=paths.home(),
        devices=tuple(devices(dev)),
        memlock=_daemon_memlock(),
        selinux=selinux_enforced(),
        uid=uid or IMAGE_UID,
        gid=gid if uid else IMAGE_UID,
    )


def selinux_enforced(state: Path = Path("/sys/fs/selinux/enforce")) -> bool:
    """Whether SELinux is on and enforcing."""
    try:
        return state.read_text().strip() == "1"
    except OSError:
        return False


def devices(dev: Path) -> Iterable[Device]:
    """The nodes a GPU container needs, as far as they exist: /dev/kfd and the render nodes."""
    for path in (dev / "kfd", *sorted((dev / "dri").glob("renderD*"))):
        try:
            found = path.stat()
        except OSError:
            continue
        if stat.S_ISCHR(found.st_mode):
            yield Device(path=str(path), gid=found.st_gid)


def memlock_of(limits: str, status: str) -> int | None:
    """The most that containers of a daemon may lock (bytes), None for no limit.

    Args:
        limits: /proc/PID/limits of the daemon.
        status: /proc/PID/status of the daemon; with CAP_SYS_RESOURCE it may raise any limit.
    """
    for line in status.splitlines():
        if line.startswith("CapEff:") and int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1:
            return None
    for line in limits.splitlines():
        if line.startswith("Max locked memory"):
            hard = line.split()[4]
            return None if hard == "unlimited" else int(hard)
    return None


def _daemon_memlock() -> int | None:
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "comm").read_text().strip() == "dockerd":
                return memlock_of((process / "limits").read_text(), (process / "status").read_text())
        except OSError:
            continue
    # The daemon is not visible (rootless helper, remote): our own limit is the best that is known.
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def give(path: Path, uid: int, gid: int) -> None:
    """Hand a file over to another user; only root can."""
    os.chown(path, uid, gid)
