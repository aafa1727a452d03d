"""Unified diffs, read and matched strictly: bytes in, bytes out, no file is touched here.

A hunk fits only where all of its context and removed lines stand, byte for byte, and a file's hunks fit
only if there is exactly one way to place them in order. That is stricter than `git apply` and patch(1),
which take the nearest place: in repetitive code the nearest place is at times the wrong one. Where a
hunk touches the start or the end of its file it must do so in the tree as well, as in `git apply`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from errors import BadInput

Lines = Sequence[bytes]
"""A file as its lines, each with its newline; only the last may lack it."""

_HUNK: Final = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_SIGNATURE: Final = re.compile(rb"^\d+\.\d+[\w.\- ()]*$")
_PLAIN_MODES: Final = (b"100644", b"100755")


class BadPatch(BadInput):
    """The text is no patch, is damaged, or is of a kind that is refused."""


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """One hunk: where it stood when it was cut (lines count from 1) and its lines as (mark, text)."""

    old_start: int
    new_start: int
    lines: tuple[tuple[bytes, bytes], ...]

    @property
    def before(self) -> tuple[bytes, ...]:
        """The lines that must stand in the tree."""
        return tuple(text for mark, text in self.lines if mark != b"+")

    @property
    def after(self) -> tuple[bytes, ...]:
        """The lines that stand there afterwards."""
        return tuple(text for mark, text in self.lines if mark != b"-")

    @property
    def at_start(self) -> bool:
        """Whether it was cut at the start of its file."""
        return self.old_start <= 1

    @property
    def at_end(self) -> bool:
        """Whether it was cut at the end of its file: it has no context below its last change."""
        return self.lines[-1][0] != b" "

    def reversed(self) -> Hunk:
        """The hunk that undoes this one."""
        swap = {b"+": b"-", b"-": b"+", b" ": b" "}
        return Hunk(
            old_start=self.new_start,
            new_start=self.old_start,
            lines=tuple((swap[mark], text) for mark, text in self.lines),
        )


@dataclass(frozen=True, kw_only=True)
class FilePatch:
    """All hunks for one file. `creates` and `deletes` say that the file must not exist before or after.

    `old_executable` and `new_executable` are None where the patch says nothing of the mode.
    """

    path: str
    creates: bool
    deletes: bool
    old_executable: bool | None
    new_executable: bool | None
    hunks: tuple[Hunk, ...]

    def reversed(self) -> FilePatch:
        """The file patch that undoes this one."""
        return replace(
            self,
            creates=self.deletes,
            deletes=self.creates,
            old_executable=self.new_executable,
            new_executable=self.old_executable,
            hunks=tuple(hunk.reversed() for hunk in self.hunks),
        )


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A parsed patch: its header (the prose above the first diff), its digest and its files.

    `digest` is the SHA-256 of the diff alone, without `index` lines (hosts change the length of the
    hashes in them) and without the mail signature.
    """

    header: str
    digest: str
    files: tuple[FilePatch, ...]

    def reversed(self) -> Patch:
        """The patch that undoes this one."""
        return replace(self, files=tuple(file.reversed() for file in self.files))


# --- reading -----------------------------------------------------------------------------------------


def parse(text: bytes, name: str) -> Patch:
    """Read a patch.

    Args:
        name: stands for the patch in messages.

    Raises:
        BadPatch: see the reasons in `_refuse_whole` and `_Reader`; each names the line.
    """
    _refuse_whole(text, name)
    lines = text.split(b"\n")[:-1]
    start = next((i for i in range(len(lines)) if _starts_file(lines, i)), None)
    if start is None:
        raise BadPatch(f"{name} holds no diff", why="no line starts with 'diff --git' or '--- '")
    reader = _Reader(lines, start, name)
    files = tuple(reader.files())
    twice = {file.path for file in files if sum(other.path == file.path for other in files) > 1}
    if twice:
        raise BadPatch(
            f"{name} changes {min(twice)} twice",
            why="it looks like several patches in one file",
            hint="split it into one entry per patch",
        )
    kept = [line for line in lines[start : reader.end] if not line.startswith(b"index ")]
    return Patch(
        header=b"\n".join(lines[:start]).decode(errors="replace"),
        digest=hashlib.sha256(b"\n".join(kept) + b"\n").hexdigest(),
        files=files,
    )


def _refuse_whole(text: bytes, name: str) -> None:
    if not text.strip():
        raise BadPatch(f"{name} is empty")
    if re.match(rb"\s*<(!doctype|html|\?xml)", text[:200], re.IGNORECASE):
        raise BadPatch(
            f"{name} is a web page, not a patch", why="a server answered with an error or login page"
        )
    if not text.endswith(b"\n"):
        raise BadPatch(f"{name} does not end with a newline", why="its last line may be cut off")
    if re.search(rb"^(--- a/|\+\+\+ b/|diff --git )[^\n]*\r$", text, re.MULTILINE):
        raise BadPatch(
            f"{name} has Windows line ends",
            why="its header lines end with CR LF, so its context cannot match byte for byte",
            hint="store it with LF (.gitattributes: *.patch -text)",
        )


def _starts_file(lines: list[bytes], at: int) -> bool:
    if lines[at].startswith(b"diff --git "):
        return True
    return lines[at].startswith(b"--- ") and at + 1 < len(lines) and lines[at + 1].startswith(b"+++ ")


class _Reader:
    """Reads the diffs of a patch one after the other. `end` is the line after the last one."""

    def __init__(self, lines: list[bytes], at: int, name: str) -> None:
        self.lines = lines
        self.at = at
        self.name = name
        self.end = at

    def files(self) -> Iterator[FilePatch]:
        while self.at < len(self.lines):
            if _starts_file(self.lines, self.at):
                yield self._file()
                self.end = self.at
            elif self._only_signature_left():
                return
            else:
                raise self._wrong("text between or after the diffs", "is it a mailbox of several patches?")

    def _only_signature_left(self) -> bool:
        """Whether nothing follows but blank lines and what git format-patch puts below a patch."""
        rest = [line for line in self.lines[self.at :] if line.strip()]
        return not rest or (rest[0] == b"-- " and len(rest) <= 2 and all(map(_SIGNATURE.match, rest[1:])))

    def _file(self) -> FilePatch:
        modes = self._extended_header()
        if self._peek().startswith(b"--- "):
            old, new = self._path(b"--- "), self._path(b"+++ ")
        else:
            old, new = self._paths_without_hunks(modes)
        if old is None and new is None:
            raise self._wrong("both sides of a file are /dev/null")
        if old and new and old != new:
            raise self._wrong(
                f"it moves {old} to {new}", "renames are refused; write it as changes of one name"
            )
        hunks = tuple(self._hunks())
        if not hunks and "old" not in modes and not modes.keys() & {"new file", "deleted file"}:
            raise self._wrong("a file without hunks", "the patch is cut")
        made = FilePatch(
            path=new or old or "",
            creates=old is None,
            deletes=new is None,
            old_executable=_executable(modes.get("old") or modes.get("deleted file")),
            new_executable=_executable(modes.get("new") or modes.get("new file")),
            hunks=hunks,
        )
        self._refuse_loose(made)
        return made

    def _extended_header(self) -> dict[str, bytes]:
        """The lines between `diff --git` and `---`; returns the modes and the names they state."""
        found: dict[str, bytes] = {}
        if not self._peek().startswith(b"diff --git "):
            return found
        found["git"] = self._next()[len(b"diff --git ") :]
        while self.at < len(self.lines):
            line = self._peek()
            match = re.match(rb"^(old|new|new file|deleted file) mode (\d{6})$", line)
            if match:
                if match[2] not in _PLAIN_MODES:
                    raise self._wrong(
                        f"file mode {match[2].decode()}", "symbolic links and submodules are refused"
                    )
                found[match[1].decode()] = match[2]
            elif line.startswith((b"rename ", b"copy ", b"similarity ", b"dissimilarity ")):
                raise self._wrong("it renames or copies a file", "write it as changes of one name")
            elif line.startswith((b"GIT binary patch", b"Binary files ")):
                raise self._wrong("it changes a binary file", "only text can be patched")
            elif not line.startswith(b"index "):
                break
            self.at += 1
        return found

    def _paths_without_hunks(self, modes: dict[str, bytes]) -> tuple[str | None, str | None]:
        """The names of a file whose mode alone changes, or that is made or deleted empty."""
        left, _, right = modes["git"].partition(b" b/")
        if not left.startswith(b"a/") or left[2:] != right:
            raise self._wrong("a file name that cannot be read from its 'diff --git' line")
        path = self._safe(right)
        return (None if "new file" in modes else path), (None if "deleted file" in modes else path)

    def _path(self, mark: bytes) -> str | None:
        line = self._next()
        if not line.startswith(mark):
            raise self._wrong(f"a line that starts with {mark.decode()!r} is missing here")
        raw = line[len(mark) :].split(b"\t")[0]
        if raw == b"/dev/null":
            return None
        prefix = b"a/" if mark == b"--- " else b"b/"
        if not raw.startswith(prefix):
            raise self._wrong(
                f"the name {raw.decode(errors='replace')!r} does not start with {prefix.decode()!r}"
            )
        return self._safe(raw[2:])

    def _safe(self, raw: bytes) -> str:
        try:
            path = PurePosixPath(raw.decode())
        except UnicodeDecodeError as error:
            raise self._wrong("a file name that is not UTF-8") from error
        if path.is_absolute() or not path.parts or ".." in path.parts or str(path) != raw.decode():
            raise self._wrong(f"the path {raw.decode()!r} leaves the tree or is not written plainly")
        if ".git" in (part.lower() for part in path.parts):
            raise self._wrong(f"the path {raw.decode()!r} is inside a .git folder")
        return str(path)

    def _hunks(self) -> Iterator[Hunk]:
        while self.at < len(self.lines) and self._peek().startswith(b"@@"):
            head = _HUNK.match(self._next())
            if not head:
                raise self._wrong("a hunk header that cannot be read")
            old_start, old_count, new_start, new_count = (int(n) if n else 1 for n in head.groups())
            yield Hunk(
                old_start=old_start, new_start=new_start, lines=tuple(self._hunk_lines(old_count, new_count))
            )

    def _hunk_lines(self, old: int, new: int) -> list[tuple[bytes, bytes]]:
        """As many lines as the hunk header counts; fewer means that the patch is cut."""
        found: list[tuple[bytes, bytes]] = []
        while old > 0 or new > 0:
            line = self._next() if self.at < len(self.lines) else b"?"
            mark = line[:1] or b" "  # a blank context line whose blank was stripped on the way
            if mark == b"\\" and found:
                self._join_last(found)
                continue
            if mark not in (b" ", b"-", b"+"):
                raise self._wrong(
                    f"a hunk ends {max(old, new)} lines early", "the patch is cut or was edited"
                )
            old -= mark != b"+"
            new -= mark != b"-"
            found.append((mark, line[1:] + b"\n"))
        if old < 0 or new < 0:
            raise self._wrong("a hunk has more lines than its header counts")
        if self.at < len(self.lines) and self._peek().startswith(b"\\"):
            self.at += 1
            self._join_last(found)
        return found

    def _join_last(self, found: list[tuple[bytes, bytes]]) -> None:
        """`\\ No newline at end of file`: the line above has none."""
        mark, text = found[-1]
        found[-1] = (mark, text.removesuffix(b"\n"))

    def _refuse_loose(self, file: FilePatch) -> None:
        """A change without any line around it lands anywhere; only a whole file may be without context."""
        if file.creates or file.deletes:
            return
        for number, hunk in enumerate(file.hunks, 1):
            if all(mark != b" " for mark, _ in hunk.lines):
                raise BadPatch(
                    f"{self.name}: hunk {number} of {file.path} has no context lines",
                    why="without context a hunk lands at the stated line, whatever stands there",
                    hint="cut it with git diff -U3",
                )
            if all(mark == b" " for mark, _ in hunk.lines):
                raise BadPatch(f"{self.name}: hunk {number} of {file.path} changes nothing")

    def _peek(self) -> bytes:
        return self.lines[self.at] if self.at < len(self.lines) else b""

    def _next(self) -> bytes:
        self.at += 1
        return self.lines[self.at - 1]

    def _wrong(self, what: str, hint: str = "") -> BadPatch:
        return BadPatch(f"{self.name}, line {self.at}: {what}", hint=hint)


def _executable(mode: bytes | None) -> bool | None:
    return None if mode is None else mode == b"100755"


# --- matching ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """Why a file patch does not fit: the file, the hunk (from 1; 0 is the file itself), what and where."""

    path: str
    hunk: int
    reason: str
    nearest: tuple[str, ...] = ()


def split(content: bytes) -> list[bytes]:
    """A file's content as lines that keep their newline."""
    return content.splitlines(keepends=True) if b"\r" not in content else _split_lf(content)


def _split_lf(content: bytes) -> list[bytes]:
    """`bytes.splitlines` also splits at a lone CR, which is no line end here."""
    parts = content.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def places(hunk: Hunk, lines: Lines) -> list[int]:
    """All line indices (from 0) at which the hunk's old lines stand, ends respected."""
    before = hunk.before
    last = len(lines) - len(before)
    if last < 0:
        return []
    candidates: Sequence[int] = range(last + 1)
    if hunk.at_start:
        candidates = [0]
    if hunk.at_end:
        candidates = [at for at in candidates[-1:] if at == last]
    if not before:
        return list(candidates)
    first, width = before[0], len(before)
    return [at for at in candidates if lines[at] == first and tuple(lines[at : at + width]) == before]


def arrangements(file: FilePatch, lines: Lines, limit: int = 2) -> list[tuple[int, ...]]:
    """Up to `limit` ways to place all hunks of a file in order and without overlap."""
    found: list[tuple[int, ...]] = []
    options = [places(hunk, lines) for hunk in file.hunks]

    def place(number: int, after: int, taken: tuple[int, ...]) -> None:
        if number == len(options):
            found.append(taken)
            return
        width = len(file.hunks[number].before)
        for at in options[number]:
            if at >= after and len(found) < limit:
                place(number + 1, at + width, (*taken, at))

    if all(options):
        place(0, 0, ())
    return found


def rewrite(file: FilePatch, content: bytes | None) -> bytes | Misfit | None:
    """The file's new content (None = it is gone) or why the patch does not fit.

    Args:
        content: what the file holds now; None if it does not exist.
    """
    if file.creates:
        if content is not None:
            return Misfit(path=file.path, hunk=0, reason="the file exists already")
        return b"".join(text for hunk in file.hunks for text in hunk.after)
    if content is None:
        return Misfit(path=file.path, hunk=0, reason="the file does not exist")
    lines = split(content)
    ways = arrangements(file, lines)
    if len(ways) != 1:
        return _misfit(file, lines, ways)
    made = _replaced(file, lines, ways[0])
    if file.deletes:
        if made:
            return Misfit(path=file.path, hunk=0, reason="the file has more lines than the patch deletes")
        return None
    return b"".join(made)


def offsets(file: FilePatch, content: bytes) -> list[int]:
    """By how many lines each hunk of a fitting file patch has moved since it was cut."""
    ways = arrangements(file, split(content))
    assert len(ways) == 1, "only for a file patch that fits"
    return [at + 1 - hunk.old_start for at, hunk in zip(ways[0], file.hunks, strict=True) if hunk.before]


def _replaced(file: FilePatch, lines: Lines, way: Sequence[int]) -> list[bytes]:
    made: list[bytes] = []
    done = 0
    for at, hunk in zip(way, file.hunks, strict=True):
        made += lines[done:at]
        made += hunk.after
        done = at + len(hunk.before)
    return made + list(lines[done:])


def _misfit(file: FilePatch, lines: Lines, ways: list[tuple[int, ...]]) -> Misfit:
    if ways:
        number, both = next(
            (n, pair) for n, pair in enumerate(zip(*ways, strict=True), 1) if pair[0] != pair[1]
        )
        reason = f"it fits in more than one place, at lines {both[0] + 1} and {both[1] + 1}"
        return Misfit(path=file.path, hunk=number, reason=reason)
    for number, hunk in enumerate(file.hunks, 1):
        if not places(hunk, lines):
            return Misfit(
                path=file.path,
                hunk=number,
                reason="its old lines stand nowhere",
                nearest=_nearest(hunk, lines),
            )
    return Misfit(path=file.path, hunk=1, reason="its hunks stand in another order")


def _nearest(hunk: Hunk, lines: Lines) -> tuple[str, ...]:
    """The part of the file most like the hunk's old lines, numbered, for the message."""
    wanted = hunk.before
    known = {text for text in wanted if text.strip(b" \t\r\n{}()*/#;")}
    if not known:
        return ()
    hits = [text in known for text in lines]
    width = max(len(wanted), 1)
    score = sum(hits[:width])
    best, at_best = score, 0
    for at in range(1, max(len(lines) - width + 1, 1)):
        score += hits[at + width - 1] - hits[at - 1]
        if score > best:
            best, at_best = score, at
    if best == 0:
        return ()
    window = lines[at_best : at_best + width]
    return tuple(
        f"{at_best + i:6} {'' if text in wanted else '≠'}{text.decode(errors='replace').rstrip()}"
        for i, text in enumerate(window, 1)
    )
