"""What a check works in: the servers it may start, prompts, remembered reference answers, tolerances."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeVar

from checks.arrangement import Arrangement
from checks.client import Client, Completion
from checks.compare import Tolerance, split, worst
from checks.launcher import Launcher, Running
from checks.prompts import Prompts

T = TypeVar("T")

ONE_SLOT: Final = Arrangement()
"""The reference: one slot, one pass, no speculation, nothing remembered."""

PROBS: Final = 20
"""Tokens of which probabilities are compared at each place."""

ROUNDING: Final = Tolerance(distance=0.015, margin=0.1)
"""What rounding may move. Measured on the CPU with random weights and an f16 cache: up to 0.004 where
other rows, cuts and caches change the order of sums. Planted faults move it by 0.04 to 1."""

INDEXED: Final = Tolerance(distance=0.05, margin=0.15)
"""The same for a model with an indexer, where rounding exchanges blocks that are scored alike: measured
up to 0.036. Also for a server of which only the address is known."""

QUANTIZED: Final = Tolerance(distance=0.15, margin=0.5)
"""The same for quantized weights, whose kernels round the activations too: measured up to 0.064 with a
Q4_1 model; and between an f16 and a q8_0 cache, where it was up to 0.06."""

PLAIN_TYPES: Final = ("F16", "BF16", "F32", "all F32")
"""File types, as /props names them, whose weights are not quantized."""


class Wrong(Exception):
    """A check found a wrong output; with the two outputs where there are two."""

    def __init__(self, detail: str, *, expected: str = "", got: str = "") -> None:
        super().__init__(detail)
        self.expected, self.got = expected, got


class Unmet(Exception):
    """A check cannot be made here; the text is its missing precondition."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """An answer beside the one it should be.

    Args:
        what: names the answer in a message, as "slot 2 beside three strangers".
        reference: with log-probabilities.
        got: with log-probabilities, or without them where it was speculated.
    """

    what: str
    reference: Completion
    got: Completion


class Room:
    """One run's servers and references.

    Args:
        url, key: a running server to check; it is the only one when there is no launcher.
        launcher: starts servers for the checks that vary options.
        quick: make fewer rounds.
        tolerance: what rounding may move; None chooses by the model.
        device: what the server must compute on, as in a log line ("ROCm0"); empty for the CPU.
        keep: servers of a launcher that may run at the same time.
    """

    def __init__(
        self, *, url: str = "", key: str | None = None, launcher: Launcher | None = None, quick: bool = False,
        tolerance: Tolerance | None = None, device: str = "", keep: int = 2,
    ) -> None:  # fmt: skip
        self.launcher, self.quick, self.device = launcher, quick, device
        self._tolerance = tolerance
        self._fixed = Client(url, key=key) if url else None
        self._keep = keep
        self._running: dict[Arrangement, Running] = {}
        self._references: dict[tuple[tuple[int, ...], int], Completion] = {}
        self.key = key

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all servers that were started."""
        while self._running:
            self._stop(next(iter(self._running)))

    # --- servers

    def any(self, arrangement: Arrangement) -> Client:
        """The server that is checked, else one started as `arrangement` says: for checks that hold on
        every server."""
        return self._fixed or self.server(arrangement)

    def server(self, arrangement: Arrangement) -> Client:
        """A server with these very options; it stays up for the checks that want the same.

        Another call may stop it where only one server may run: a check asks for its references
        first, and for its server last.

        Raises:
            Unmet: nothing here can start servers.
        """
        if arrangement not in self._running:
            launcher = self._needed()
            self._make_place()
            self._running[arrangement] = launcher.start(arrangement)
        return self._running[arrangement].client()

    def slots(self, arrangement: Arrangement) -> int:
        """Number of slots of the server that `any` gives."""
        return int(self._fixed.ask("/props")["total_slots"]) if self._fixed else arrangement.slots

    @contextmanager
    def fresh(self, arrangement: Arrangement) -> Iterator[Running]:
        """A server that nothing was asked of yet, for the length of a block."""
        launcher = self._needed()
        self._make_place()
        running = launcher.start(arrangement)
        try:
            yield running
        finally:
            launcher.stop(running)

    def log(self, arrangement: Arrangement) -> str:
        """The log of a server that `server` gave."""
        return self._running[arrangement].log()

    def _needed(self) -> Launcher:
        if self.launcher is None:
            raise Unmet("needs to start servers: give --image or --programs with --model")
        return self.launcher

    def _make_place(self) -> None:
        """Stop servers until one more may run; the reference goes last, because all checks ask it."""
        while len(self._running) >= self._keep:
            others = [arrangement for arrangement in self._running if arrangement != ONE_SLOT]
            self._stop((others or [ONE_SLOT])[0])

    def _stop(self, arrangement: Arrangement) -> None:
        running = self._running.pop(arrangement)
        self._needed().stop(running)

    # --- what is asked, and what is right

    @cached_property
    def prompts(self) -> Prompts:
        """Token prompts for the model."""
        return Prompts(lambda text: self.any(ONE_SLOT).tokenize(text))

    def reference(self, prompt: Sequence[int], tokens: int) -> Completion:
        """The answer of a server with nothing else to do, remembered for the whole run."""
        known = tuple(prompt), tokens
        if known not in self._references:
            self._references[known] = self.any(ONE_SLOT).complete(prompt, tokens, probs=PROBS)
        return self._references[known]

    @cached_property
    def tolerance(self) -> Tolerance:
        """What rounding may move."""
        if self._tolerance:
            return self._tolerance
        if self.any(ONE_SLOT).ask("/props").get("model_ftype") not in PLAIN_TYPES:
            return QUANTIZED
        indexed = self._fixed is not None or "creating indexer" in self.log(ONE_SLOT)
        return INDEXED if indexed else ROUNDING

    @cached_property
    def recurrent(self) -> bool:
        """Whether the model has a recurrent state, which cannot be cut back token by token."""
        self.server(ONE_SLOT)
        return "llama_memory_recurrent" in self.log(ONE_SLOT)

    def must_draft(self) -> None:
        """Raise Unmet unless there is a draft head to start servers with."""
        if not self._needed().drafts:
            raise Unmet("the model has no draft head: give --draft")


def together(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Run jobs at the same time; their results in order. The first failure is raised when all have ended."""
    with ThreadPoolExecutor(max_workers=max(1, len(jobs))) as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]


def agree(claims: Sequence[Claim], tolerance: Tolerance) -> str:
    """Hold answers against their references; says how far apart the farthest were.

    Distributions are compared where both answers have them, else the tokens: a greedy text may leave
    its reference only where the reference itself was undecided.

    Raises:
        Wrong: names the worst answer, how many are wrong, and where.
    """
    wrong: list[tuple[str, Claim]] = []
    farthest = 0.0
    for claim in claims:
        if reason := _departs(claim, tolerance):
            wrong.append((reason, claim))
        if claim.got.steps:
            farthest = max(farthest, worst(claim.reference.steps, claim.got.steps))
    if wrong:
        reason, claim = wrong[0]
        raise Wrong(
            f"{len(wrong)} of {len(claims)} answers are wrong; {claim.what}: {reason}",
            expected=claim.reference.content, got=claim.got.content,
        )  # fmt: skip
    return f"{len(claims)} answers agree, the farthest by {farthest:.1e}"


def _departs(claim: Claim, tolerance: Tolerance) -> str:
    reference, got = claim.reference, claim.got
    if len(got.tokens) != len(reference.tokens):
        return f"{len(got.tokens)} tokens instead of {len(reference.tokens)}"
    apart = worst(reference.steps, got.steps) if all(step.top for step in got.steps) else 0.0
    if apart > tolerance.distance:
        return f"distributions differ by {apart:.2f} (allowed {tolerance.distance})"
    left = split(reference, got.tokens)
    if left and left.margin > tolerance.margin:
        return f"another token at place {left.place}, by {left.margin:.2f} nats (allowed {tolerance.margin})"
    return ""
