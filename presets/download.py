"""Fetches a set of files so that nothing on the line can fool it.

Each file is known beforehand by size and sha256. It is hashed while it arrives, resumed where it
stopped, written beside its place and given its name only when the sum is right.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

import requests

import say
from errors import CheckFailed, HostLacks, NetworkFailed
from presets import download_door as door_of
from presets.download_door import Answer, Door, Passing
from presets.download_part import Part, verified
from presets.download_progress import Progress, Sight, progress

_Result = TypeVar("_Result")
BUFFER_S: Final = 0.5
"""A buffer is written and counted when it is full or this old."""
SLOWEST: Final = 1024
"""Bytes per second below which, over the stall time, a connection counts as dead."""
SMALLEST_SPAN: Final = 64 << 20
FLUSH_EVERY_S: Final = 1.0
"""Writing to the disk goes along with the transfer, so that little is left to flush at its end."""
PATIENCE_WITH_416: Final = 2
LEAVE_AFTER_S: Final = 2.0
"""After a failure the other connections have this long to end by themselves."""


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A file to fetch: from where, what it must be, where it goes.

    Attributes:
        size: bytes.
        revision: the commit the Hub must report, or None.
        magic: the first bytes; tells a web page from a model before anything is kept.
    """

    url: str
    target: Path
    size: int
    sha256: str
    door: Door
    revision: str | None = None
    magic: bytes = b"GGUF"

    @property
    def name(self) -> str:
        """The file's name."""
        return self.target.name


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to fetch.

    Attributes:
        files: files at once.
        ranges: connections per file.
        rate: cap in bytes per second over all connections, or None.
        buffer: bytes per connection that a kill may cost.
        tries: faults in a row without a new byte before it gives up.
        backoff_s: first wait after a fault; doubles up to `longest_wait_s`, with jitter.
        patience_s: the longest Retry-After that is waited for.
    """

    files: int = 4
    ranges: int = 1
    rate: int | None = None
    buffer: int = 4 << 20
    tries: int = 8
    backoff_s: float = 1.0
    longest_wait_s: float = 60.0
    patience_s: float = 900.0


class Pace:
    """Holds all connections together below a number of bytes per second."""

    def __init__(self, rate: int | None) -> None:
        self.rate, self._free_at, self._lock = rate, 0.0, threading.Lock()

    @property
    def piece(self) -> int:
        """Bytes to ask for at once, so that a slow cap does not come in bursts."""
        return 1 << 20 if self.rate is None else max(4096, min(1 << 20, self.rate // 8))

    def spend(self, size: int) -> float:
        """Seconds to wait after `size` bytes came."""
        if self.rate is None:
            return 0.0
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / self.rate
            return self._free_at - now


@dataclass(kw_only=True)
class _Shared:
    """What all transfers of a set have in common."""

    options: Options
    pace: Pace
    stop: threading.Event = field(default_factory=threading.Event)
    errors: list[BaseException] = field(default_factory=list)

    def fail(self, error: BaseException) -> None:
        self.errors.append(error)
        self.stop.set()


class _Restart(Exception):
    """What is here cannot be gone on with; the text says why."""


class _Transfer:
    """One file: its connections, its hash, its faults."""

    def __init__(self, remote: Remote, shared: _Shared) -> None:
        self.remote, self.shared = remote, shared
        self.part = Part(remote.target, remote.size, remote.sha256)
        self.finished = False
        self._best = 0
        self._faults = 0
        self._lock = threading.Lock()

    @property
    def sight(self) -> Sight:
        done = self.remote.size if self.finished else self.part.done
        return Sight(name=self.remote.name, done=done, total=self.remote.size)

    def run(self) -> None:
        """Fetch, verify, name. Raises what `fetch_all` raises."""
        if verified(self.remote.target) == self.remote.sha256:
            self.part.drop()
            self.finished = True
            return
        with self.part as part:
            if not part.done and self.shared.options.ranges > 1 and part.total >= 2 * SMALLEST_SPAN:
                part.split(min(self.shared.options.ranges, part.total // SMALLEST_SPAN))
            if part.done:
                say.step("models", f"{self.remote.name}: goes on after {say.size(part.done)}")
            digest: list[str] = []
            along = threading.Thread(target=self._hash, args=(digest,), daemon=True)
            along.start()
            try:
                while part.done < part.total and not self.shared.stop.is_set():
                    self._round()
            except BaseException as error:  # first the others must have left the part alone
                self.shared.fail(error)
            along.join()
            if not self.shared.stop.is_set():
                self._judge(digest[0])

    def _hash(self, digest: list[str]) -> None:
        try:
            digest.append(self.part.hash_along(self.shared.stop.is_set))
        except BaseException as error:  # handed to the thread that waits
            self.shared.fail(error)

    def _judge(self, digest: str) -> None:
        if digest != self.remote.sha256:
            self.part.drop()
            raise CheckFailed(
                f"{self.remote.name} came whole but is not the file that was asked for",
                why=f"sha256 {digest}, wanted {self.remote.sha256} ({door_of.shown(self.remote.url)})",
                hint="run this again; if it repeats, the server or a proxy on the way alters the file",
            )
        self.part.finish()
        self.finished = True
        say.step("models", f"{self.remote.name}: {say.size(self.remote.size)}, sha256 is right")

    def _round(self) -> None:
        """All unfinished spans at once, until each is done or one finds that ranges do not work."""
        open_spans = [number for number, span in enumerate(self.part.spans) if span.left]
        reasons: list[_Restart] = []
        workers = [
            threading.Thread(target=self._pull, args=(number, reasons), daemon=True) for number in open_spans
        ]
        for worker in workers:
            worker.start()
        try:
            self._flush_until_done(workers)
        except BaseException:
            self.shared.stop.set()
            raise
        finally:
            for worker in workers:
                worker.join()
        if reasons and not self.shared.stop.is_set():
            say.warn(f"{self.remote.name}: {reasons[0]}; it starts again from the first byte")
            wait = self._wait_after(Passing(str(reasons[0])))
            self.part.restart()
            self.shared.stop.wait(wait)

    def _flush_until_done(self, workers: list[threading.Thread]) -> None:
        flushed = time.monotonic()
        while any(worker.is_alive() for worker in workers):
            for worker in workers:
                worker.join(0.05 if len(workers) > 1 else 0.25)
            if time.monotonic() - flushed > FLUSH_EVERY_S:
                self.part.flush()
                flushed = time.monotonic()

    def _pull(self, number: int, reasons: list[_Restart]) -> None:
        try:
            with self.remote.door.made() as session:
                while self.part.spans[number].left and not reasons and not self.shared.stop.is_set():
                    self._attempt(session, number)
        except _Restart as reason:
            reasons.append(reason)
        except BaseException as error:  # handed to the thread that waits
            self.shared.fail(error)

    def _attempt(self, session: requests.Session, number: int) -> None:
        """One request; a passing fault is waited out."""
        try:
            self._request(session, number)
        except Passing as fault:
            self.shared.stop.wait(self._wait_after(fault))

    def _wait_after(self, fault: Passing) -> float:
        options = self.shared.options
        with self._lock:
            done = self.part.done
            self._faults = 1 if done > self._best else self._faults + 1
            self._best = max(self._best, done)
            faults = self._faults
        if faults > options.tries or fault.wait > options.patience_s:
            asks = f"; it asks to come back in {fault.wait:.0f} s" if fault.wait > options.patience_s else ""
            raise NetworkFailed(
                f"{self.remote.name}: given up after {faults} faults in a row without progress",
                why=f"last: {fault.what} ({fault.why or 'no more is known'}){asks}",
                hint=fault.hint,
            ) from fault
        wait = max(fault.wait, _backoff(options, faults))
        say.step("models", f"{self.remote.name}: {fault.what}; tries again in {wait:.1f} s")
        return wait

    def _request(self, session: requests.Session, number: int) -> None:
        span = self.part.spans[number]
        whole = span.end == self.part.total
        wanted = (span.position, None if whole else span.end)
        with door_of.opened(self.remote.door, session, self.remote.url, wanted) as answer:
            self._compare(answer)
            most = min(self.shared.pace.piece, self.shared.options.buffer, span.left)
            first = door_of.read_some(answer, most)
            self._accept(answer, number, first)
            self._take(answer, number, first)

    def _compare(self, answer: Answer) -> None:
        """Hold what the headers say against what the file must be, before a byte is kept."""
        remote = self.remote
        if answer.sha256 not in (None, remote.sha256):
            raise CheckFailed(
                f"{remote.name} on the server is not the file that was pinned",
                why=f"the server says sha256 {answer.sha256}, the catalog or lock {remote.sha256}",
                hint="./inv models.lock shows what changed; do not go on before you know why",
            )
        if answer.linked_size not in (None, remote.size):
            raise CheckFailed(
                f"{remote.name} on the server has another size than was pinned",
                why=f"the server says {answer.linked_size} bytes, the catalog or lock {remote.size}",
                hint="./inv models.lock shows what changed",
            )
        if remote.revision and answer.commit not in (None, remote.revision):
            raise CheckFailed(
                f"{remote.name} came from another revision than the pinned one",
                why=f"X-Repo-Commit is {answer.commit}, wanted {remote.revision}",
            )

    def _accept(self, answer: Answer, number: int, first: bytes) -> None:
        """Decide whether this body may be kept at the span's position.

        Raises:
            Passing: it is not the file; what is here stays.
            _Restart: it is the whole file where a part was asked for, or another version of it.
        """
        span, part = self.part.spans[number], self.part
        if answer.status == 416:
            if self._faults >= PATIENCE_WITH_416:
                raise _Restart("the server refuses every range")
            raise Passing(
                "the server refuses the range (416)", why=f"it says the file has {answer.total} bytes"
            )
        magic = self.remote.magic
        at_start = answer.status == 200 or span.position == 0
        alien = at_start and not first.startswith(magic[: len(first)] or magic)
        if alien or answer.total not in (None, part.total):
            kind = door_of.plain(answer.response.headers.get("Content-Type", "of no type"))
            raise Passing(
                "the answer is not the file",
                why=f"{answer.total} bytes {kind} that begin with {first[:60]!r}; wanted: {part.total} bytes "
                "(a proxy or a login page may answer in place of the server)",
            )
        if answer.status == 200 and (span.position or span.end != part.total):
            raise _Restart("the server ignores ranges")
        if part.done and part.etag and answer.etag not in ("", part.etag):
            raise _Restart(f"its etag changed from {part.etag} to {answer.etag}")
        part.etag = answer.etag or part.etag

    def _take(self, answer: Answer, number: int, first: bytes) -> None:
        """Read the body into the part, buffer by buffer; what came before a fault is kept."""
        buffer = _Buffer(self.part, number, self.shared.options.buffer)
        pulse = _Pulse(self.remote.door.stall_s)
        pace, stop = self.shared.pace, self.shared.stop
        try:
            buffer.add(first)
            while buffer.missing and not stop.is_set():
                chunk = door_of.read_some(answer, min(pace.piece, buffer.room, buffer.missing))
                if not chunk:
                    raise Passing("the line was cut", why=f"{buffer.missing} bytes are missing")
                buffer.add(chunk)
                pulse.beat(len(chunk))
                if (wait := pace.spend(len(chunk))) > 0:
                    stop.wait(wait)
        finally:
            buffer.flush()


class _Buffer:
    """Collects what comes for a span; writes and counts it when it is full or `BUFFER_S` old."""

    def __init__(self, part: Part, number: int, most: int) -> None:
        self.part, self.number, self.most = part, number, most
        self.missing = part.spans[number].left
        self.chunks: list[bytes] = []
        self.room, self.since = most, time.monotonic()

    def add(self, chunk: bytes) -> None:
        self.chunks.append(chunk)
        self.missing -= len(chunk)
        self.room -= len(chunk)
        if self.room <= 0 or len(self.chunks) > 1000 or time.monotonic() - self.since > BUFFER_S:
            self.flush()

    def flush(self) -> None:
        if self.room < self.most:
            self.part.write(self.number, self.chunks)
        self.chunks, self.room, self.since = [], self.most, time.monotonic()


class _Pulse:
    """Notices a connection that lives but hardly brings anything."""

    def __init__(self, stall_s: float) -> None:
        self.stall_s, self.since, self.size = stall_s, time.monotonic(), 0

    def beat(self, size: int) -> None:
        """Raises Passing when the last `stall_s` seconds brought less than `SLOWEST` bytes a second."""
        self.size += size
        passed = time.monotonic() - self.since
        if passed > self.stall_s:
            if self.size < SLOWEST * passed:
                raise Passing("the transfer stalled", why=f"{self.size} bytes in {passed:.0f} s")
            self.since, self.size = time.monotonic(), 0


def fetch_all(
    remotes: Sequence[Remote],
    options: Options | None = None,
    shows: Progress | None = None,
    later: Sequence[tuple[Path, int]] = (),
) -> None:
    """Fetch files that are not there yet, several at once.

    Args:
        later: places and sizes in bytes of what will be unpacked from them; needs room too.

    Raises:
        HostLacks: not enough disk space (said before the first byte), or the folder refuses writes.
        NetworkFailed: a server refuses, or nothing new came for `tries` tries.
        CheckFailed: a server offers, or has sent, other content than was pinned.
    """
    options = options or Options()
    shared = _Shared(options=options, pace=Pace(options.rate))
    transfers = [_Transfer(remote, shared) for remote in remotes]
    if not transfers:
        return
    check_space(remotes, later)
    waiting: SimpleQueue[_Transfer] = SimpleQueue()
    for transfer in transfers:
        waiting.put(transfer)
    with _crew(waiting, shared, min(options.files, len(transfers))) as crew, shows or progress() as view:
        stopped_at = None
        while any(worker.is_alive() for worker in crew):
            view.show([transfer.sight for transfer in transfers])
            for worker in crew:
                worker.join(0.1 / len(crew))
            if shared.stop.is_set():
                stopped_at = stopped_at or time.monotonic()
                if time.monotonic() - stopped_at > LEAVE_AFTER_S:
                    break
        view.show([transfer.sight for transfer in transfers])
    if shared.errors:
        raise shared.errors[0]


def patiently(action: Callable[[], _Result], options: Options | None = None) -> _Result:
    """Do a small request until it works, waiting out passing faults.

    Raises:
        NetworkFailed: it failed `tries` times; the last fault is its cause.
    """
    options = options or Options(tries=4)
    turn = 0
    while True:
        turn += 1
        try:
            return action()
        except Passing as fault:
            if turn >= options.tries or fault.wait > options.patience_s:
                raise NetworkFailed(f"{fault.what} ({turn} tries)", why=fault.why, hint=fault.hint) from fault
            wait = max(fault.wait, _backoff(options, turn))
            say.step("models", f"{fault.what}; tries again in {wait:.1f} s")
            time.sleep(wait)


def _backoff(options: Options, fault: int) -> float:
    """Seconds to wait after the n-th fault in a row, with jitter so that clients spread."""
    longest = min(options.longest_wait_s, options.backoff_s * 2 ** (fault - 1))
    return random.uniform(longest / 2, longest)  # noqa: S311 - jitter, not a secret


@contextmanager
def _crew(waiting: SimpleQueue[_Transfer], shared: _Shared, count: int) -> Iterator[list[threading.Thread]]:
    """Threads that run the waiting transfers; told to stop when the block is left.

    They are daemons: an interrupt ends the program at once, and what is on disk stays usable.
    """

    def work() -> None:
        while not shared.stop.is_set():
            try:
                waiting.get_nowait().run()
            except Empty:
                return
            except BaseException as error:  # handed to the thread that waits
                shared.fail(error)

    crew = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for worker in crew:
        worker.start()
    try:
        yield crew
    finally:
        shared.stop.set()


def check_space(remotes: Iterable[Remote], later: Iterable[tuple[Path, int]] = ()) -> None:
    """Refuse before the first byte when the files cannot all be stored.

    Raises:
        HostLacks: says how much is missing on which folder.
    """
    coming = [(remote.target, remote.size - _held(remote)) for remote in remotes]
    wanted: dict[int, tuple[Path, int]] = {}
    for target, size in [*coming, *later]:
        folder = _existing(target.parent)
        device = folder.stat().st_dev
        before = wanted.get(device, (folder, 0))[1]
        wanted[device] = folder, before + max(0, size)
    for folder, size in wanted.values():
        free = shutil.disk_usage(folder).free
        if size > free:
            raise HostLacks(
                f"{folder} has too little room",
                why=f"{say.size(size)} are still to come, {say.size(free)} are free "
                f"({size - free} bytes are missing)",
                hint="free space there, or set HALOFORGE_MODELS to a folder on another disk",
            )


def _held(remote: Remote) -> int:
    """Bytes of disk that a part of this file takes already."""
    part = remote.target.with_name(f".{remote.name}.part")
    return part.stat().st_blocks * 512 if part.exists() else 0


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
