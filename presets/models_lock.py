"""The lock: what the Hub's file list says about files whose checksum the catalog does not know.

`catalog/lock.json` maps `repo@revision` and path to bytes and sha256. An entry is written once; when
the Hub says something else later, everything stops.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

import say
from errors import BadInput, CheckFailed, HostLacks, NetworkFailed
from paths import replacing
from presets import download, download_door
from presets.catalog import FOLDER, Files, Hub, Shard
from presets.download_door import Door

LOCK: Final = FOLDER / "lock.json"


@dataclass(frozen=True, kw_only=True)
class Pin:
    """What a file must be."""

    bytes: int
    sha256: str


Lock = Mapping[str, Mapping[str, Pin]]


def read(path: Path = LOCK) -> dict[str, dict[str, Pin]]:
    """The lock; empty where there is none yet.

    Raises:
        BadInput: the file is damaged.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {place: {name: Pin(**pin) for name, pin in files.items()} for place, files in content.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise BadInput(
            f"the lock {path} cannot be read", why=str(error), hint=f"git checkout {path.name}, or remove it"
        ) from error


def pinned(files: Files, shard: Shard, lock: Lock) -> Pin | None:
    """What pins a shard: the catalog, else the lock; None where neither knows it."""
    if shard.sha256 is not None and shard.bytes is not None:
        return Pin(bytes=shard.bytes, sha256=shard.sha256)
    if not isinstance(files.source, Hub):
        return None
    return lock.get(place(files.source), {}).get(shard.path)


def place(source: Hub) -> str:
    """The lock's name for a repository at a revision."""
    return f"{source.repo}@{source.revision}"


def refresh(sets: Iterable[Files], door: Door, path: Path = LOCK) -> tuple[int, int]:
    """Compare files with the Hub's list at their revision and write what was not known into the lock.

    Returns: how many files were compared with what was known, and how many were added.

    Raises:
        CheckFailed: the Hub says something else than the catalog or the lock; names every file.
        NetworkFailed: the Hub cannot be asked, or does not have a file.
    """
    lock = read(path)
    compared, added, differ = 0, 0, []
    for files in sets:
        if not isinstance(files.source, Hub):
            continue
        for shard, told in _told(files, files.source, door):
            known = pinned(files, shard, lock)
            said = Pin(
                bytes=shard.bytes or (known.bytes if known else told.bytes),
                sha256=shard.sha256 or (known.sha256 if known else told.sha256),
            )
            if said != told:
                differ.append(f"{shard.path}: the Hub says {told}, pinned is {said}")
            elif known is None:
                lock.setdefault(place(files.source), {})[shard.path] = told
                added += 1
            else:
                compared += 1
    if differ:
        raise CheckFailed(
            f"{len(differ)} files on the Hub are not what is pinned",
            why="\n        ".join(differ),
            hint="a revision never changes by itself: find out why before you change the pin",
        )
    if added:
        _write(lock, path)
    return compared, added


def complete(sets: Iterable[Files], door: Door, path: Path = LOCK) -> dict[str, dict[str, Pin]]:
    """The lock with every file of these sets in it; asks the Hub, aloud, for what is missing."""
    lock = read(path)
    unknown = [
        files
        for files in sets
        if isinstance(files.source, Hub) and any(pinned(files, shard, lock) is None for shard in files.shards)
    ]
    if not unknown:
        return lock
    _, added = refresh(unknown, door, path)
    say.step("models", f"{added} checksums taken from the Hub's file list into {path.name}")
    return read(path)


def pins_of(files: Files, door: Door, path: Path = LOCK) -> dict[str, Pin]:
    """Path -> pin of each file of a set, from the catalog, the lock, or (without writing) the Hub's list."""
    lock = read(path)
    known = {shard.path: pinned(files, shard, lock) for shard in files.shards}
    if isinstance(files.source, Hub) and None in known.values():
        return {shard.path: pin for shard, pin in _told(files, files.source, door)}
    return {name: pin for name, pin in known.items() if pin is not None}


def _told(files: Files, source: Hub, door: Door) -> list[tuple[Shard, Pin]]:
    """What the Hub's list says of each shard."""
    folders = {str(PurePosixPath(shard.path).parent).removeprefix(".") for shard in files.shards}
    listed: dict[str, Pin] = {}
    with door.made() as session:
        for folder in sorted(folders):
            ask = partial(download_door.listing, door, session, source.repo, source.revision, folder)
            for entry in download.patiently(ask):
                listed |= _entry(entry)
    missing = [shard.path for shard in files.shards if shard.path not in listed]
    if missing:
        raise NetworkFailed(
            f"{source.repo} does not have {missing[0]} with a checksum",
            why=f"at revision {source.revision}",
            hint="the catalog's path or revision is wrong, or the file is not stored as a large file",
        )
    return [(shard, listed[shard.path]) for shard in files.shards]


def _entry(entry: object) -> dict[str, Pin]:
    """One entry of the Hub's list as path -> pin; {} for what is not a large file."""
    if not isinstance(entry, dict) or not isinstance(entry.get("lfs"), dict):
        return {}
    lfs = entry["lfs"]
    sha256 = str(lfs.get("oid", "")).removeprefix("sha256:")
    size = lfs.get("size")
    if len(sha256) != 64 or not isinstance(size, int) or size != entry.get("size", size):
        raise NetworkFailed("the Hub's file list makes no sense", why=repr(entry)[:200])
    return {str(entry.get("path")): Pin(bytes=size, sha256=sha256)}


def _write(lock: Lock, path: Path) -> None:
    content = {
        repo: {name: vars(pin) for name, pin in sorted(files.items())} for repo, files in sorted(lock.items())
    }
    try:
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise HostLacks(
            f"cannot write the lock {path}",
            why=error.strerror or str(error),
            hint="make the checkout writable, or run ./inv models.lock as its owner",
        ) from error
