"""`bench.load`: start to healthy with cold and warm files, bytes read, memory taken and given back."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench import host, load
from bench.sweep import Live, Outcome, PointFailed, Step, Subject
from errors import BadInput
from presets.schema import Preset

COLD: Final = 0.02
"""Most of a file (share) that may be in the page cache for a start to count as cold."""
WARM: Final = 0.98


def steps(subject: Subject, *, quick: bool) -> list[Step]:
    """Cold and warm starts in turn."""
    if not subject.starts or subject.files is None:
        raise BadInput(
            "the load time of a running server cannot be measured", hint="name a --preset, not a --url"
        )
    return [
        Step(
            settings={"files": state, "turn": turn},
            measure=_measure,
            alone=partial(_prepare, state=state, files=subject.files.every),
        )
        for turn in range(1 if quick else 3)
        for state in ("cold", "warm")
    ]  # fmt: skip


def _prepare(preset: Preset, *, state: str, files: Sequence[Path]) -> Outcome:
    """Bring the files out of, or into, the page cache and prove it."""
    for file in files:
        (evict if state == "cold" else read_through)(file)
    sizes = [file.stat().st_size for file in files]
    resident = sum(cached_share(file) * size for file, size in zip(files, sizes, strict=True)) / sum(sizes)
    if state == "cold" and resident > COLD:
        raise PointFailed(
            f"{resident:.0%} of the files stayed in the page cache", why="another process has them mapped"
        )
    if state == "warm" and resident < WARM:
        raise PointFailed(
            f"only {resident:.0%} of the files fit into the page cache", why="too little memory"
        )
    return Outcome(measured={"resident_share": resident, "file_bytes": float(sum(sizes))})


def evict(file: Path) -> None:
    """Drop one file from the page cache; pages that are mapped elsewhere stay."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_through(file: Path) -> None:
    """Read one file to its end, so that it lies in the page cache."""
    with file.open("rb", buffering=0) as opened:
        while opened.read(1 << 24):
            pass


def cached_share(file: Path) -> float:
    """Share of a file's pages that lie in the page cache, 0 to 1 (mincore(2))."""
    size = file.stat().st_size
    if not size:
        return 1.0
    libc = ctypes.CDLL(None, use_errno=True)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        pages = -(-size // mmap.PAGESIZE)
        vector = (ctypes.c_ubyte * pages)()
        first = ctypes.c_char.from_buffer(mapped)
        try:
            if libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), vector):
                raise OSError(ctypes.get_errno(), f"mincore of {file}")
        finally:
            del first
        return sum(page & 1 for page in bytes(vector)) / pages


def _measure(live: Live) -> Outcome:
    """One short answer to touch all weights, then the end."""
    body = {"prompt": "The", "n_predict": 4, "ignore_eos": True, "cache_prompt": False}
    answer = live.fire([load.Ask(name="first", body=body, chat=False)]).answers[0]
    found: dict[str, Any] = {"healthy_s": live.healthy_s, "first_token_s": answer.ttft_s}
    read = bytes_read(live.server.pid())
    if read is not None:
        found["read_bytes"] = float(read)
    during = host.available_bytes()
    begin = time.monotonic()
    live.server.stop()
    found["teardown_s"] = time.monotonic() - begin
    found["returned_bytes"] = float(max(0, host.available_bytes() - during))
    return Outcome(measured=found, samples=[found])


def bytes_read(pid: int | None) -> int | None:
    """Bytes a process made the disk deliver; None where that may not be read."""
    if pid is None:
        return None
    try:
        text = Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("read_bytes")), None)
