"""Unpack a source archive without trusting it.

The standard library's extraction filter is missing from Python 3.11.2, which Debian 12 ships, so the few
kinds of members that a source tree has are written here by hand and everything else is refused.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath

from errors import CheckFailed


def unpack(archive: Path, target: Path, *, strip: str = "") -> int:
    """Write the files below `strip` of a tar archive into an empty folder; returns how many.

    Files get mode 0644 or 0755 and the current owner, whatever the archive says.

    Raises:
        CheckFailed: the archive is cut or damaged, has nothing below `strip`, or a member would leave
            the target, is a device or a hard link, or stands twice.
    """
    top = PurePosixPath(strip) if strip else None
    count = 0
    try:
        with tarfile.open(archive, mode="r:*") as members:
            for member in members:
                name = _inside(member.name, top)
                if name is not None:
                    count += _write(members, member, target, name)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CheckFailed(f"{archive.name} cannot be unpacked", why=str(error)) from error
    if count == 0:
        raise CheckFailed(f"{archive.name} holds no file below {strip or 'its root'}")
    return count


def _inside(name: str, top: PurePosixPath | None) -> PurePosixPath | None:
    """The member's path below `top`; None for members beside it and for `top` itself."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise CheckFailed(f"the archive has a member that leaves the tree: {name!r}")
    if top is None:
        return path if path.parts else None
    if path == top or top not in path.parents:
        return None
    return path.relative_to(top)


def _write(members: tarfile.TarFile, member: tarfile.TarInfo, target: Path, name: PurePosixPath) -> int:
    place = target / name
    if member.isdir():
        place.mkdir(parents=True, exist_ok=True)
        return 0
    place.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(place):
        raise CheckFailed(f"the archive has two members named {member.name!r}")
    if _through_link(target, name):
        raise CheckFailed(f"the archive writes through a symbolic link: {member.name!r}")
    if member.issym():
        _link(place, member.linkname, name)
    elif member.isfile():
        source = members.extractfile(member)
        assert source is not None
        with source, place.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        place.chmod(0o755 if member.mode & 0o100 else 0o644)
    else:
        raise CheckFailed(
            f"the archive has a member that is no file, folder or symbolic link: {member.name!r}"
        )
    return 1


def _through_link(target: Path, name: PurePosixPath) -> bool:
    return any((target / parent).is_symlink() for parent in name.parents)


def _link(place: Path, destination: str, name: PurePosixPath) -> None:
    reached = os.path.normpath(os.path.join(name.parent.as_posix(), destination))  # noqa: PTH118
    if destination.startswith("/") or reached == ".." or reached.startswith("../"):
        raise CheckFailed(f"the archive has a link that leaves the tree: {name} -> {destination}")
    place.symlink_to(destination)
