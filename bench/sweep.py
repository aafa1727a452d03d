"""The runner every sweep shares: points in, a server for each, one stored line per point."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import say
from bench import host, load, texts
from bench.results import Identity, Point, Store
from bench.servers import (
    Files,
    Launcher,
    Remote,
    Served,
    Server,
    ServerDied,
    ask,
    served,
    wait_healthy,
)  # fmt: skip
from errors import BadInput, CheckFailed, DoesNotFit, HaloforgeError
from presets import schema
from presets.schema import Preset

GIB: Final = 2**30
STALLED_S: Final = 15.0
"""Seconds without more memory after which no more is waited for (GTT is released late, SEED.md A5)."""
STEP: Final = 16 * 2**20
TEMPLATE_TOKENS: Final = 96
"""Tokens kept free for what a chat template puts around a message."""
SETTLED: Final = 512 * 2**20
"""Bytes of MemAvailable that may be missing when the next point starts."""


class PointFailed(CheckFailed):
    """A point could not be measured; the sweep goes on with the next one."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the planner says of some settings: bytes by name, and how sure it is of each name."""

    sizes: Mapping[str, float]
    certainty: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is measured: a server that runs already, or a preset on an engine that starts them."""

    preset: Preset | None
    files: Files | None
    launcher: Launcher | None
    identity: Identity
    url: str | None = None
    key: str | None = None
    predict: Callable[[Preset], Prediction] | None = None
    buffers: Callable[[str], Mapping[str, float]] = lambda log: {}

    @property
    def starts(self) -> bool:
        """Whether a server can be started with another setting."""
        return self.launcher is not None

    def changed(self, changes: Mapping[str, Any], *, unchecked: bool = False) -> Preset:
        """The preset with some settings changed, checked as a whole unless `unchecked`.

        Raises:
            BadInput: the changed preset contradicts itself.
        """
        if self.preset is None:
            raise BadInput(
                "a server that runs already keeps its settings", hint="name a --preset, not a --url"
            )
        if not changes:
            return self.preset
        if unchecked:
            return self.preset.model_copy(update=dict(changes))
        values = self.preset.model_dump(exclude={"name", "predicted_mib"})
        return schema.parse({**values, **changes}, name=self.preset.name)


@dataclass(frozen=True, kw_only=True)
class Live:
    """A server that is up, with what a measurement may want to know of it."""

    server: Server
    says: Served
    preset: Preset | None
    healthy_s: float
    quick: bool

    def fire(self, asks: Sequence[load.Ask], *, timeout_s: float = load.TIMEOUT_S) -> load.Round:
        """Send requests at once; one that fails fails the point.

        Raises:
            PointFailed: a request broke off or was refused; with the server's last word if it died.
        """
        done = load.fire(self.server.url, asks, key=self.server.key, timeout_s=timeout_s)
        if done.errors:
            # A killed process closes its sockets a moment before it can be waited for.
            host.wait_until(lambda: self.server.ended() is not None, timeout_s=1.0)
            ended = self.server.ended()
            if ended:
                raise ServerDied("the server died while it answered", why=ended)
            broken = f"{len(done.errors)} of {len(asks)} requests failed"
            raise PointFailed(broken, why="; ".join(done.errors)[:500])
        if done.generator_share > load.BUSY_SHARE and done.wall_s > load.SHORT_S:
            share = f"{done.generator_share:.0%} of a core"
            say.warn(f"the load generator took {share}; it may hold the server back")
        return done

    def words(self, tokens: int, *, reserve: int) -> int:
        """Words of filler that make a prompt of `tokens`, or of what a slot can hold beside `reserve`."""
        sample = texts.filler(texts.SAMPLE_WORDS, seed=1)
        count = len(ask(self.server, "/tokenize", {"content": sample})["tokens"])
        room = self.says.slot_context - reserve - TEMPLATE_TOKENS
        return texts.words_for(tokens, count / len(sample.split()), room=room)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a measurement found; see `Point` for the names."""

    measured: Mapping[str, float] = field(default_factory=dict)
    samples: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """One point to measure.

    Args:
        settings: what makes the point this one, workload included.
        changes: settings of the preset that differ; steps in a row with equal ones share a server.
        measure: does the work on a live server.
        alone: done before the server starts, as two copies of a model may not fit; such a step has a server
            of its own.
        draft: another draft head than the subject's.
        unchecked: the changes contradict each other on purpose (a batch below the ubatch).
    """

    settings: Mapping[str, Any]
    measure: Callable[[Live], Outcome]
    changes: Mapping[str, Any] = field(default_factory=dict)
    alone: Callable[[Preset], Outcome] | None = None
    unchecked: bool = False
    draft: Path | None = None


def run(
    sweep: str, steps: Sequence[Step], subject: Subject, *, store: Store | None = None, again: bool = False,
    quick: bool = False,
) -> list[Point]:  # fmt: skip
    """Measure all steps, storing each as it ends; returns the points in the order of the steps.

    A point that failed is stored with its reason and the sweep goes on. Points that are stored already
    are not measured again unless `again` is set, so an interrupted sweep is resumed by the same command.
    """
    store = store or Store(sweep)
    facts = host.facts()
    known = {} if again else store.done()
    progress = _Progress(sweep, len(steps))
    empty = Point(sweep=sweep, settings={}, identity=subject.identity, host=facts, quick=quick)
    found: list[Point] = []
    for _, group in groupby(steps, key=lambda step: (dict(step.changes), step.draft)):
        members = [(step, empty.model_copy(update={"settings": dict(step.settings)})) for step in group]
        missing = [(step, point) for step, point in members if point.key not in known]
        found += [progress.kept(known[point.key]) for _, point in members if point.key in known]
        for point in _group(missing, subject, quick, progress):
            store.append(point)
            found.append(point)
    return found


def _group(
    left: list[tuple[Step, Point]], subject: Subject, quick: bool, progress: _Progress
) -> Iterator[Point]:
    """Measure the steps that share a server; one that dies is started again for the steps left."""
    while left:
        first = left[0][0]
        try:
            preset = subject.changed(first.changes, unchecked=first.unchecked) if subject.starts else None
            before = first.alone(preset) if first.alone and preset else Outcome()
            with up(subject, preset, draft=first.draft, quick=quick) as (live, watch):
                while left and live.server.ended() is None:
                    step, point = left.pop(0)
                    progress.begin(point)
                    yield progress.end(_one(step, point, live, watch, subject, before))
                    if step.alone:
                        break
        except HaloforgeError as error:
            # It did not come up, and with the same settings it will not for the others either; only what
            # was done before the start belongs to one step.
            doomed, left = (left[:1], left[1:]) if first.alone else (left, [])
            for _, point in doomed:
                progress.begin(point)
                yield progress.end(_failed(point, error))


def _one(step: Step, point: Point, live: Live, watch: host.Watch, subject: Subject, before: Outcome) -> Point:
    begin = time.monotonic()
    identity = point.identity.model_copy(update={"build": live.says.build})
    point = point.model_copy(update={"identity": identity})
    if live.preset is not None and subject.predict is not None:
        said = subject.predict(live.preset)
        planned = {"predicted": dict(said.sizes), "certainty": dict(said.certainty)}
        point = point.model_copy(update=planned)
    try:
        outcome = step.measure(live)
    except HaloforgeError as error:
        return _failed(point, _guarded(watch) or error, seconds=time.monotonic() - begin)
    measured = {
        "healthy_s": live.healthy_s, "available_drop_bytes": float(watch.seen.drop),
        **({"gtt_peak_bytes": float(watch.seen.gtt_peak)} if watch.seen.gtt_peak is not None else {}),
        **subject.buffers(live.server.log()), **before.measured, **outcome.measured,
    }  # fmt: skip
    samples = [dict(one) for one in (*before.samples, *outcome.samples)]
    return point.model_copy(
        update={"measured": measured, "samples": samples, "seconds": round(time.monotonic() - begin, 3)}
    )


def _guarded(watch: host.Watch) -> PointFailed | None:
    if not watch.tripped:
        return None
    return PointFailed(
        "the guard ended the server", why=f"MemAvailable fell to {say.size(watch.seen.lowest)}"
    )


def _failed(point: Point, error: HaloforgeError, *, seconds: float = 0.0) -> Point:
    reason = f"{error.what}: {error.why}" if error.why else error.what
    return point.model_copy(update={"status": "failed", "reason": reason, "seconds": round(seconds, 3)})


@contextmanager
def up(
    subject: Subject, preset: Preset | None, *, draft: Path | None = None, quick: bool = False
) -> Iterator[tuple[Live, host.Watch]]:
    """A live server with these settings, under guard, ended when the block ends; without settings the one
    behind the subject's URL, which is left running.

    Raises:
        ServerDied: it did not come up.
        DoesNotFit: the planner says that it would fall below the guard.
    """
    if preset is None or subject.launcher is None or subject.files is None:
        server: Server = Remote(url=subject.url or "", key=subject.key)
        with host.Watch() as watch:
            yield Live(server=server, says=served(server), preset=None, healthy_s=0.0, quick=quick), watch
        return
    _refuse_too_big(subject, preset)
    before = host.available_bytes()
    files = replace(subject.files, draft=draft) if draft else subject.files
    server = subject.launcher.start(preset, files)
    try:
        with host.Watch(floor=int(preset.guard_gib * GIB), on_low=server.kill) as watch:
            try:
                healthy = wait_healthy(server)
                says = served(server)
            except ServerDied as error:
                raise _guarded(watch) or error from error
            yield Live(server=server, says=says, preset=preset, healthy_s=healthy, quick=quick), watch
    finally:
        server.stop()
        server.remove()
        _settle(before)


def _refuse_too_big(subject: Subject, preset: Preset) -> None:
    """Start nothing that the planner says would fall below the guard.

    Raises:
        DoesNotFit: with both figures.
    """
    if subject.predict is None:
        return
    total, available = subject.predict(preset).sizes["total_bytes"], host.available_bytes()
    if total > available - preset.guard_gib * GIB:
        figures = f"planned {say.size(int(total))}, available {say.size(available)}"
        why = f"{figures}, guard {preset.guard_gib:g} GiB"
        raise DoesNotFit("it does not fit, so it was not started", why=why)


def _settle(before: int) -> None:
    """Wait until memory is back, as long as some comes back; others may have taken the rest."""
    best, since = host.available_bytes(), time.monotonic()
    while best < before - SETTLED and time.monotonic() - since < STALLED_S:
        time.sleep(0.1)
        now = host.available_bytes()
        if now > best + STEP:
            best, since = now, time.monotonic()
    if best < before - SETTLED:
        say.warn(f"MemAvailable is still {say.size(before - best)} lower than before the server started")


class _Progress:
    """One line when a point starts, with the time left, and one when it ended."""

    def __init__(self, sweep: str, count: int) -> None:
        self.sweep, self.count, self.number = sweep, count, 0
        self.begun = time.monotonic()
        self.worked = 0

    def begin(self, point: Point) -> None:
        self.number += 1
        left = ""
        if self.worked:
            each = (time.monotonic() - self.begun) / self.worked
            left = f", about {duration(each * (self.count - self.number + 1))} left"
        say.step(self.sweep, f"{self.number} of {self.count}{left}: {named(point.settings)}")

    def kept(self, point: Point) -> Point:
        self.number += 1
        known = f"{named(point.settings)} is there from {point.time}"
        say.step(self.sweep, f"{self.number} of {self.count}: {known}")
        return point

    def end(self, point: Point) -> Point:
        self.worked += 1
        if point.status == "failed":
            say.warn(f"{self.sweep} {named(point.settings)} failed: {point.reason}")
        return point


def named(settings: Mapping[str, Any]) -> str:
    """Settings on one line: `ubatch=256 depth=0`."""
    return " ".join(f"{name}={shown(value)}" for name, value in settings.items())


def shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(str(one) for one in value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """Seconds for people: `48 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def failed(points: Iterable[Point]) -> list[Point]:
    """Those of some points that failed."""
    return [point for point in points if point.status == "failed"]
