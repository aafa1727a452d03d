"""What a source tree consists of, and the one digest that names it.

The digest covers names, kinds, executable bits and contents, not times or owners: two trees with the
same digest compile to the same thing wherever they were unpacked.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import paths


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file or symbolic link.

    `mode` is git's: 100644, 100755 or 120000. `sha256` is of the content, or of the link's target.
    `size` (bytes) and `mtime_ns` only serve to see quickly that nothing was touched.
    """

    mode: str
    sha256: str
    size: int
    mtime_ns: int


Manifest = Mapping[str, Entry]


def scan(root: Path, known: Manifest | None = None) -> dict[str, Entry]:
    """All entries below a folder by their relative path.

    Args:
        known: an earlier manifest of the same folder; contents of entries whose size, mode and time
            are unchanged are not read again.

    Raises:
        OSError: an entry cannot be read.
        ValueError: something is neither file, folder nor symbolic link.
    """
    made = {}
    for name, found in _walk(root, ""):
        info = found.stat(follow_symlinks=False)
        mode = _mode(info.st_mode, name)
        before = (known or {}).get(name)
        if before and (before.mode, before.size, before.mtime_ns) == (mode, info.st_size, info.st_mtime_ns):
            made[name] = before
            continue
        made[name] = Entry(
            mode=mode,
            sha256=content_digest(Path(found.path)),
            size=info.st_size,
            mtime_ns=info.st_mtime_ns,
        )
    return made


def digest(manifest: Manifest) -> str:
    """The SHA-256 over all entries, sorted by name: mode, content digest, name, one line each."""
    total = hashlib.sha256()
    for name in sorted(manifest):
        entry = manifest[name]
        total.update(f"{entry.mode} {entry.sha256} {name}\0".encode())
    return total.hexdigest()


def content_digest(path: Path) -> str:
    """The SHA-256 of a file's bytes, or of a symbolic link's target."""
    if path.is_symlink():
        return hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save(manifest: Manifest, path: Path) -> None:
    """Write a manifest, whole or not at all."""
    rows = {n: [e.mode, e.sha256, e.size, e.mtime_ns] for n, e in sorted(manifest.items())}
    with paths.replacing(path) as temporary:
        temporary.write_text(json.dumps(rows, separators=(",", ":")), encoding="utf-8")


def load(path: Path) -> dict[str, Entry]:
    """Read a manifest back.

    Raises:
        OSError, ValueError: the file is missing or not a manifest.
    """
    rows = json.loads(path.read_text(encoding="utf-8"))
    try:
        return {n: Entry(mode=r[0], sha256=r[1], size=r[2], mtime_ns=r[3]) for n, r in rows.items()}
    except (AttributeError, IndexError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not a manifest") from error


def differences(left: Manifest, right: Manifest) -> list[str]:
    """The names that two manifests do not agree on, sorted."""
    return sorted(
        name for name in left.keys() | right.keys() if _identity(left.get(name)) != _identity(right.get(name))
    )


def _identity(entry: Entry | None) -> tuple[str, str] | None:
    return (entry.mode, entry.sha256) if entry else None


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(folder) as found:
        for item in found:
            name = prefix + item.name
            if item.is_dir(follow_symlinks=False):
                yield from _walk(Path(item.path), name + "/")
            else:
                yield name, item


def _mode(bits: int, name: str) -> str:
    if stat.S_ISLNK(bits):
        return "120000"
    if not stat.S_ISREG(bits):
        raise ValueError(f"{name} is neither a file, a folder nor a symbolic link")
    return "100755" if bits & stat.S_IXUSR else "100644"
