"""Real memory pressure for the guard's tests."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

HOG_MIB = 3072
MARGIN_MIB = 1536
"""The threshold lies this far below what is free at the start: the hog takes twice that, noise less."""


@contextmanager
def hog(mib: int) -> Iterator[None]:
    """A process that holds and touches that much memory."""
    body = (
        f"b = bytearray({mib} << 20)\n"
        "for i in range(0, len(b), 4096): b[i] = 1\n"
        "print('held', flush=True)\n"
        "input()\n"
    )
    argv = [sys.executable, "-c", body]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "held\n"
            yield
        finally:
            process.kill()


def until(done: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.2)
