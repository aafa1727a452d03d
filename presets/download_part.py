"""A file on its way: `.NAME.part` with the bytes and `.NAME.part.json` that says which of them are right.

Killed at any moment, the two stay usable: bytes are written first, then counted, and what is not
counted is fetched again (at most one buffer per connection). After a power cut, seen from another
boot id, only what had been flushed to disk counts. The sha256 over the whole has the last word.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import say
from errors import HostLacks

READ_BYTES: Final = 4 << 20
PAGE: Final = 4096
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, kw_only=True)
class Span:
    """Bytes `start` to `end` of the file, of which `done` are here; `safe` of those are on the disk."""

    start: int
    end: int
    done: int = 0
    safe: int = 0

    @property
    def position(self) -> int:
        """Where the next byte of this span belongs."""
        return self.start + self.done

    @property
    def left(self) -> int:
        """Bytes still to come."""
        return self.end - self.position


class Part:
    """The two files of one transfer, locked against a second process.

    Args:
        target: where the file goes when it is whole and right.
        total: its bytes.
        sha256: what its content must be; a part begun for another content is dropped.
    """

    def __init__(self, target: Path, total: int, sha256: str) -> None:
        self.target, self.total, self.sha256 = target, total, sha256
        self.path = target.with_name(f".{target.name}.part")
        self.state = target.with_name(f".{target.name}.part.json")
        self.etag = ""
        self.spans: list[Span] = [Span(start=0, end=total)]
        self._changed = threading.Condition()
        self._restarts = 0
        self._handle = -1

    def __enter__(self) -> Part:
        with disk(self.path):
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._handle)
            raise HostLacks(
                f"{self.target.name} is being fetched by another process",
                why=f"{self.path} is locked",
                hint="wait for it to end, or stop it, and run this again",
            ) from error
        self._load()
        return self

    def __exit__(self, *_: object) -> None:
        handle, self._handle = self._handle, -1  # a late writer must meet an error, not another file
        os.close(handle)

    @property
    def done(self) -> int:
        """Bytes that are here."""
        return sum(span.done for span in self.spans)

    def prefix(self) -> int:
        """Bytes from the file's beginning without a gap."""
        for span in self.spans:
            if span.left:
                return span.position
        return self.total

    def split(self, count: int) -> None:
        """Cut an untouched file into at most `count` spans of whole pages."""
        share = -(-self.total // count)
        step = -(-share // PAGE) * PAGE
        starts = range(0, self.total, step)
        self.spans = [Span(start=start, end=min(start + step, self.total)) for start in starts]

    def restart(self) -> None:
        """Forget everything that came."""
        with self._changed:
            self._restarts += 1
            self.spans = [Span(start=0, end=self.total)]
            self.etag = ""
            with disk(self.path):
                os.ftruncate(self._handle, 0)
            self._save()

    def write(self, number: int, chunks: Sequence[bytes]) -> None:
        """Put what came at the position of a span, then count it.

        Raises:
            HostLacks: the disk is full or refuses the write; what was counted before stays good.
        """
        span = self.spans[number]
        size = sum(map(len, chunks))
        with disk(self.path):
            written = os.pwritev(self._handle, chunks, span.position)
            rest = memoryview(b"".join(chunks))[written:] if written < size else memoryview(b"")
            while rest:
                more = os.pwrite(self._handle, rest, span.position + written)
                written, rest = written + more, rest[more:]
        with self._changed:
            self.spans[number] = replace(span, done=span.done + size)
            self._save()
            self._changed.notify_all()

    def flush(self) -> None:
        """Bring to the disk what came, so that a power cut cannot take it."""
        before = list(self.spans)
        with disk(self.path):
            os.fdatasync(self._handle)
        with self._changed:
            for number, (span, old) in enumerate(zip(self.spans, before, strict=False)):
                self.spans[number] = replace(span, safe=min(old.done, span.done))
            self._save()

    def hash_along(self, stopped: Callable[[], bool]) -> str:
        """The sha256 of the file, computed while its bytes arrive (on a resume, what is here is read once).

        Returns "" when `stopped()` turns true first. A restart of the part starts the sum again.
        """
        digest, position, restarts = hashlib.sha256(), 0, self._restarts
        buffer = memoryview(bytearray(READ_BYTES))
        while position < self.total:
            if stopped():
                return ""
            with self._changed:
                if restarts != self._restarts:
                    digest, position, restarts = hashlib.sha256(), 0, self._restarts
                if self.prefix() == position:
                    self._changed.wait(0.1)
                    continue
                most = min(len(buffer), self.prefix() - position)
            with disk(self.path):
                size = os.preadv(self._handle, [buffer[:most]], position)
            digest.update(buffer[:size])
            position += size
        return digest.hexdigest()

    def finish(self) -> None:
        """Flush, record what was verified, and give the file its name; a kill in between loses nothing."""
        with disk(self.path):
            os.ftruncate(self._handle, self.total)
            os.fsync(self._handle)
            record(self.target, self.path, self.sha256)
            self.path.replace(self.target)
            folder = os.open(self.target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self.state.unlink(missing_ok=True)

    def drop(self) -> None:
        """Remove both files (of a finished one, what a kill between its last two steps left)."""
        self.path.unlink(missing_ok=True)
        self.state.unlink(missing_ok=True)

    def _load(self) -> None:
        size = os.fstat(self._handle).st_size
        try:
            state = json.loads(self.state.read_text(encoding="utf-8"))
            same = state["sha256"] == self.sha256 and state["bytes"] == self.total
            spans = [Span(**span) for span in state["spans"]] if same else []
            trusted = "done" if state["boot"] == _boot() else "safe"
            self.etag = str(state["etag"])
        except (OSError, ValueError, KeyError, TypeError):
            spans, trusted = [], "done"
        held = [
            replace(span, done=max(0, min(getattr(span, trusted), span.end - span.start, size - span.start)))
            for span in spans
        ]
        if _covers(held, self.total):
            self.spans = held
            return
        if size:
            say.warn(f"{self.target.name}: what is here belongs to another file or try; it starts again")
        self.restart()

    def _save(self) -> None:
        state = {
            "sha256": self.sha256,
            "bytes": self.total,
            "etag": self.etag,
            "boot": _boot(),
            "spans": [vars(span) for span in self.spans],
        }
        temporary = self.state.with_suffix(".tmp")
        with disk(self.state):
            temporary.write_text(json.dumps(state), encoding="utf-8")
            temporary.replace(self.state)


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Turns what a disk may answer into an error that a user can act on."""
    try:
        yield
    except OSError as error:
        raise HostLacks(
            f"cannot write {path.parent}",
            why=error.strerror or str(error),
            hint="free space or rights there, or set HALOFORGE_MODELS to another folder; then run this "
            "again, it goes on where it stopped",
        ) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what a disk may answer to a read into an error that a user can act on."""
    try:
        yield
    except OSError as error:
        raise HostLacks(
            f"cannot read {path}",
            why=error.strerror or str(error),
            hint="give this user the right to read it, or remove it; a file that cannot be read on a sound "
            "file system points to a failing disk",
        ) from error


def note(target: Path, sha256: str) -> None:
    """As `record` for a file in place; where nothing may be written the next run simply hashes again."""
    try:
        record(target, target, sha256)
    except OSError as error:
        say.warn(
            f"{target.name}: cannot note that it was verified ({error.strerror}); it will be hashed again"
        )


def record_path(target: Path) -> Path:
    """The file beside a model file that says what it was verified to be."""
    return target.with_name(f".{target.name}.verified")


def record(target: Path, file: Path, sha256: str) -> None:
    """Note that `file`, about to be or already at `target`, has this sha256 in its present state."""
    text = json.dumps({"sha256": sha256, **_identity(file)})
    temporary = record_path(target).with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(record_path(target))


def verified(target: Path) -> str | None:
    """The sha256 that a file was verified to have, if it has not been touched since; else None."""
    try:
        noted = json.loads(record_path(target).read_text(encoding="utf-8"))
        same = {key: noted[key] for key in ("bytes", "mtime_ns", "inode")} == _identity(target)
        return str(noted["sha256"]) if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def sha256_of(path: Path, on_bytes: Callable[[int], None] = lambda _: None) -> str:
    """The sha256 of a file; `on_bytes` hears how many bytes were read each time."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(READ_BYTES))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
            on_bytes(size)
    return digest.hexdigest()


def _identity(file: Path) -> dict[str, int]:
    found = file.stat()
    return {"bytes": found.st_size, "mtime_ns": found.st_mtime_ns, "inode": found.st_ino}


def _covers(spans: list[Span], total: int) -> bool:
    """Whether spans follow each other without gap from 0 to the end."""
    ends = [0, *(span.end for span in spans)]
    return bool(spans) and ends[-1] == total and all(span.start == ends[i] for i, span in enumerate(spans))


def _boot() -> str:
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
