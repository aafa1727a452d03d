"""Model files that this machine has already: in the Hub client's cache, or in folders the user names.

A file counts when its size and its sha256 are right, whatever its name. It is linked into the
models folder, never copied: hard where both are on one disk, else by a symbolic link.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import say
from presets import download_door
from presets.download_part import disk, note, sha256_of
from presets.download_progress import watched
from presets.models_lock import Pin


def folders(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The folders of HALOFORGE_MODEL_DIRS (separated by `:`)."""
    words = environ.get("HALOFORGE_MODEL_DIRS", "").split(os.pathsep)
    return [Path(word).expanduser() for word in words if word]


def use(pin: Pin, target: Path, environ: Mapping[str, str] = os.environ) -> bool:
    """Link a file of this machine with the pinned content to `target`; False when there is none."""
    for found in candidates(pin, environ):
        say.step("models", f"{target.name}: looks like {found}; hashing {say.size(pin.bytes)}")
        try:
            content = watched(found, sha256_of)
        except OSError as error:
            say.warn(f"{found} cannot be read ({error.strerror}); not used")
            continue
        if content == pin.sha256:
            kind = _link(found, target)
            note(target, pin.sha256)
            say.step("models", f"{target.name}: used in place, {kind} to {found}")
            return True
        say.step("models", f"{found}: right size, other content; not used")
    return False


def candidates(pin: Pin, environ: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Files with the right size, those whose name is the checksum first."""
    cache = Path(environ.get("HF_HUB_CACHE") or download_door.hub_home(environ) / "hub")
    seen = set()
    for path in [*cache.glob(f"models--*/blobs/{pin.sha256}"), *_ggufs(folders(environ))]:
        try:
            real = path.resolve(strict=True)
            right = real.is_file() and real.stat().st_size == pin.bytes
        except OSError:
            continue
        if right and real not in seen:
            seen.add(real)
            yield real


def _ggufs(named: list[Path]) -> Iterator[Path]:
    for folder in named:
        if not folder.is_dir():
            say.warn(f"HALOFORGE_MODEL_DIRS names {folder}, which is not a folder")
            continue
        yield from sorted(folder.rglob("*.gguf"))


def _link(found: Path, target: Path) -> str:
    with disk(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(found, target)
            return "hard link"
        except OSError:  # another disk, or a file system or owner that allows no hard link
            target.symlink_to(found)
            return "symbolic link"
