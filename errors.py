"""The error tree: one class per exit code, each text says what, why and what to type next."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

import paths


class HaloforgeError(Exception):
    """Something a user can act on.

    Args:
        what: one line that names what went wrong.
        why: the cause, with the value or the line that shows it.
        hint: the next command to type, or the setting to change.
    """

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"  why:  {self.why}")
        if self.hint:
            lines.append(f"  next: {self.hint}")
        return "\n".join(lines)


class CheckFailed(HaloforgeError):
    """A check ran and the result is wrong: bad output, unhealthy, a checksum that differs."""

    exit_code = 1


class BadInput(HaloforgeError):
    """A preset, flag or file that the user gave cannot be used."""

    exit_code = 2


class HostLacks(HaloforgeError):
    """The host misses something: a package, a daemon, a device, a permission, disk space, a free port."""

    exit_code = 3


class DoesNotFit(HaloforgeError):
    """The plan needs more memory than there is, or cannot tell how much it needs."""

    exit_code = 4


class NetworkFailed(HaloforgeError):
    """No source answered, or a transfer could not be finished or trusted."""

    exit_code = 5


class BuildFailed(HaloforgeError):
    """A patch did not apply or an image did not build."""

    exit_code = 6


def of_system(error: OSError) -> HaloforgeError | None:
    """What a user can act on behind an error of the operating system; None = it is a defect of ours."""
    where = f": {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HostLacks(
            f"no space left{where}",
            why="what was half written is made anew by the next run",
            hint="free some space, or point HALOFORGE_HOME / HALOFORGE_MODELS to another disk",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return HostLacks(
            f"{error.strerror}{where}",
            why="this user may not write or read there",
            hint="point HALOFORGE_HOME / HALOFORGE_MODELS to a folder of your own, or change its owner",
        )
    if error.errno in _NO_FOLDER and error.filename and _is_ours(str(error.filename)):
        return HostLacks(
            f"cannot use {error.filename}",
            why=error.strerror or str(error),
            hint="point HALOFORGE_HOME / HALOFORGE_MODELS to a folder",
        )
    return None


_NO_FOLDER: Final = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP)


def _is_ours(name: str) -> bool:
    """Whether a path stands in the way of the folders that the user may move: it holds them, or is one."""
    path = Path(name).absolute()
    folders = (paths.home(), paths.models())
    return any(path == folder or path in folder.parents or path.is_relative_to(folder) for folder in folders)


def nearest(wrong: str, known: list[str]) -> str:
    """A hint that names the known word closest to a wrong one, or lists what is known."""
    import difflib

    close = difflib.get_close_matches(wrong, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(sorted(known))
