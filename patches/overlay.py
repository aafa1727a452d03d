"""A tree with changes on top that exist only in memory, so that a series is tried before it is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from patches.diff import FilePatch, Misfit, Patch, places, rewrite, split


@dataclass(frozen=True, kw_only=True)
class File:
    """What a file of the tree holds, and whether it may be executed."""

    content: bytes
    executable: bool


class Overlay:
    """A folder seen through a stack of changes. The folder itself is only read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.changed: dict[str, File | None] = {}
        self._read: dict[str, File | None] = {}

    def file(self, path: str) -> File | None:
        """The file as it is after the changes; None if there is none."""
        if path in self.changed:
            return self.changed[path]
        if path not in self._read:
            self._read[path] = self._from_disk(path)
        return self._read[path]

    def through_link(self, path: str) -> bool:
        """Whether the file, or a folder on the way to it, is a symbolic link."""
        place = self.root / path
        return any(
            p.is_symlink() for p in (place, *place.parents) if p.is_relative_to(self.root) and p != self.root
        )

    def apply(self, patch: Patch) -> list[Misfit]:
        """Apply a patch whole, or leave everything as it was and say what does not fit.

        A patch fits if there is one way to place it and its reverse, on the result, gives back exactly
        what was there before.
        """
        before = dict(self.changed)
        misfits = [misfit for file in patch.files if (misfit := self.apply_file(file))]
        if misfits:
            self.changed = before
        return misfits

    def copy(self) -> Overlay:
        """The same view, to try something on."""
        other = Overlay(self.root)
        other.changed = dict(self.changed)
        other._read = self._read
        return other

    def apply_file(self, patch: FilePatch) -> Misfit | None:
        old = self.file(patch.path)
        new = self._rewritten(patch, old)
        if isinstance(new, Misfit):
            return new
        back = self._rewritten(patch.reversed(), new)
        if back != old:
            return Misfit(
                path=patch.path,
                hunk=1,
                reason="its new lines stand in the file already, so it could not be taken back",
            )
        self.changed[patch.path] = new
        return None

    def _rewritten(self, patch: FilePatch, old: File | None) -> File | Misfit | None:
        if self.through_link(patch.path):
            return Misfit(path=patch.path, hunk=0, reason="it lies behind a symbolic link")
        executable = old.executable if old else False
        if old and patch.old_executable is not None and patch.old_executable != executable:
            return Misfit(
                path=patch.path, hunk=0, reason=f"its mode is {'' if executable else 'not '}executable"
            )
        content = rewrite(patch, old.content if old else None)
        if content is None or isinstance(content, Misfit):
            return content
        wanted = executable if patch.new_executable is None else patch.new_executable
        return File(content=content, executable=wanted)

    def _from_disk(self, path: str) -> File | None:
        place = self.root / path
        if not place.is_file():
            return None
        return File(content=place.read_bytes(), executable=bool(place.stat().st_mode & 0o100))


def moved_to(patch: FilePatch, root: Path) -> Iterator[str]:
    """Files of the same kind that hold the old lines of all hunks: where a missing file may have gone."""
    suffix = Path(patch.path).suffix
    needle = max((text for hunk in patch.hunks for text in hunk.before), key=len, default=b"")
    if not needle.strip():
        return
    for place in sorted(root.rglob(f"*{suffix}")):
        if not place.is_file() or place.is_symlink():
            continue
        content = place.read_bytes()
        if needle in content and all(places(hunk, split(content)) for hunk in patch.hunks):
            yield place.relative_to(root).as_posix()
