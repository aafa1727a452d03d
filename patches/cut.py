"""Cut a patch: the unified diff between two states of a tree, in the form that `patches.diff` reads."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from errors import BadInput
from patches.diff import split
from patches.overlay import File

CONTEXT: Final = 3
"""Unchanged lines around a change; more are taken by `tree_diff` only if the caller asks."""


def tree_diff(
    before: Mapping[str, File | None], after: Mapping[str, File | None], *, context: int = CONTEXT
) -> bytes:
    """The diff of every file that differs, sorted by name. None stands for a file that is not there.

    Raises:
        BadInput: a file that differs holds no text.
    """
    names = sorted(before.keys() | after.keys())
    return b"".join(
        file_diff(name, before.get(name), after.get(name), context=context)
        for name in names
        if before.get(name) != after.get(name)
    )


def file_diff(path: str, old: File | None, new: File | None, *, context: int = CONTEXT) -> bytes:
    """The diff of one file, from its `diff --git` line on."""
    for file in (old, new):
        if file and b"\0" in file.content:
            raise BadInput(f"{path} changed and is not text", why="only text can be patched")
    name = path.encode()
    parts = [b"diff --git a/%s b/%s\n" % (name, name), *_mode_lines(old, new)]
    hunks = _hunks(split(old.content if old else b""), split(new.content if new else b""), context)
    if hunks:
        parts += [
            b"--- a/%s\n" % name if old else b"--- /dev/null\n",
            b"+++ b/%s\n" % name if new else b"+++ /dev/null\n",
            *hunks,
        ]
    return b"".join(parts)


def changed_files(base: Path, edited: Path, names: list[str]) -> tuple[dict[str, File], dict[str, File]]:
    """The files of both trees that are named, without those that are missing."""
    return (
        {n: f for n in names if (f := _file(base / n))},
        {n: f for n in names if (f := _file(edited / n))},
    )


def _file(place: Path) -> File | None:
    if place.is_symlink():
        raise BadInput(f"{place.name} is a symbolic link", why="only files can be patched")
    if not place.is_file():
        return None
    return File(content=place.read_bytes(), executable=bool(place.stat().st_mode & 0o100))


def _mode_lines(old: File | None, new: File | None) -> list[bytes]:
    if old is None or new is None:
        word, file = ("new file", new) if old is None else ("deleted file", old)
        return [f"{word} mode {_mode(file)}\n".encode()]
    if old.executable != new.executable:
        return [f"old mode {_mode(old)}\nnew mode {_mode(new)}\n".encode()]
    return []


def _mode(file: File | None) -> str:
    return "100755" if file and file.executable else "100644"


def _hunks(old: list[bytes], new: list[bytes], context: int) -> list[bytes]:
    found = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for group in matcher.get_grouped_opcodes(context):
        start, end = group[0], group[-1]
        lines = [
            f"@@ -{_range(start[1], end[2])} +{_range(start[3], end[4])} @@\n".encode(),
        ]
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += [_line(b" ", text) for text in old[i1:i2]]
                continue
            lines += [_line(b"-", text) for text in old[i1:i2]]
            lines += [_line(b"+", text) for text in new[j1:j2]]
        found.append(b"".join(lines))
    return found


def _range(start: int, stop: int) -> str:
    count = stop - start
    if count == 1:
        return str(start + 1)
    return f"{start + 1 if count else start},{count}"


def _line(mark: bytes, text: bytes) -> bytes:
    return mark + text if text.endswith(b"\n") else mark + text + b"\n\\ No newline at end of file\n"
