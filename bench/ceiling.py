"""`bench.ceiling`: how many streamed tokens a second the load generator takes on one core.

The stub runs in a process of its own; what counts is the generator's processor time, so a busy machine does
not change the figure. Each stream is paced, so that every token arrives alone and wakes the generator: the
dearest case there is.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

import paths
from bench import host, load
from bench.results import Identity, Point, Store
from errors import CheckFailed

GOAL_TPS: Final = 2000
"""Tokens/s per core that the generator must take; the fastest rival streams 185 to eight users (PEERS.md)."""
STREAMS: Final = (1, 8, 32)
RATE: Final = 100.0
TOKENS: Final = 200


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """Tokens a core-second of the generator, at a number of streams that each carry `RATE` tokens/s."""

    streams: int
    tokens: int
    cpu_s: float
    wall_s: float

    @property
    def tokens_per_core_second(self) -> float:
        return self.tokens / self.cpu_s

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "tokens_per_core_second": round(self.tokens_per_core_second)}


def measure(streams: Sequence[int] = STREAMS, *, rate: float = RATE, tokens: int = TOKENS) -> list[Ceiling]:
    """The generator against the stub, for each number of streams.

    Raises:
        CheckFailed: a stream broke off or lost a token, so the figure would mean nothing.
    """
    found = []
    with stub(f"--rate={rate}") as url:
        for count in streams:
            body = {"messages": [{"role": "user", "content": "go"}], "max_tokens": tokens}
            done = load.fire(url, [load.Ask(name=f"stream {number}", body=body) for number in range(count)])
            arrived = sum(len(answer.stamps) for answer in done.answers)
            if done.errors or arrived != count * tokens:
                why = "; ".join(done.errors) or f"{arrived} of {count * tokens} tokens arrived"
                raise CheckFailed("the load generator lost tokens of the stub", why=why)
            found.append(Ceiling(streams=count, tokens=arrived, cpu_s=done.cpu_s, wall_s=done.wall_s))
    return found


def keep(found: Sequence[Ceiling], store: Store | None = None) -> list[Point]:
    """Store the ceiling, so that the report shows it beside what the generator measured."""
    subject = Identity(subject="load generator")
    points = [
        Point(
            sweep="ceiling", settings={"streams": one.streams}, identity=subject, host=host.facts(),
            measured={"core_tps": one.tokens_per_core_second, "share": one.cpu_s / one.wall_s},
        )
        for one in found
    ]  # fmt: skip
    for point in points:
        (store or Store("ceiling")).append(point)
    return points


@contextmanager
def stub(*arguments: str) -> Iterator[str]:
    """The URL of a stub server in a process of its own, which ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.stub", *arguments], cwd=paths.ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise CheckFailed("the stub did not start", why=f"it ended with {process.wait()}")
        yield url
    finally:
        process.kill()
        process.communicate()
