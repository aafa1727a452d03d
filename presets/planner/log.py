"""What a llama-server log says about memory: a pure parser for every shape such logs come in.

Lines may carry time stamps, compose's `name-1  |`, a router's `[pid]`, `data: `, or be JSON (--log-jsonl).
One start prints several loads: the fitting pass first (buffers of 0.00 MiB), then the real one; a draft
model or MTP context prints its own set. Per-device lines are counted, the `size =` line that repeats their
sum is not. At default verbosity there are no buffer lines: then nothing is measured, which is not zero.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

CacheKind = Literal["kv_cache", "kv_cache_swa", "indexer_cache"]

_NUMBER: Final = r"(\d+(?:\.\d+)?)"
_BUFFER: Final = re.compile(
    r"(?P<name>[A-Za-z][\w.:()\[\]-]*)\s+(?P<kind>model|KV|RS|compute|output)\s+buffer size"
    rf"\s*=\s*{_NUMBER} MiB"
)
_CACHE: Final = re.compile(rf"llama_kv_cache\w*: size\s*=\s*{_NUMBER} MiB\s*\(\s*(\d+) cells,\s*(\d+) layers")
_STATE: Final = re.compile(rf"llama_memory_recurrent: size\s*=\s*{_NUMBER} MiB")
_LOADED: Final = re.compile(r"llama_model_loader: loaded meta data .* from (.+?) \(version")
_SLOTS: Final = re.compile(r"n_slots = (\d+), n_ctx_slot = (\d+)(?:, kv_unified = '(\w+)')?")
_CHECKPOINT: Final = re.compile(
    rf"created context checkpoint \d+ of \d+ .*?n_tokens = (\d+), size = {_NUMBER} MiB"
)
_REFUSED: Final = re.compile(
    r"failed to allocate (\S+) buffer of size (\d+)|allocating (\d+(?:\.\d+)?) MiB on device"
)
_STARTS: Final = ("llama_server: initializing", "system_info:", "main: build")
_CONTEXT: Final = ("constructing llama_context", "llama_context: n_seq_max")


@dataclass(frozen=True, kw_only=True)
class Context:
    """One llama_context: sizes in MiB by buffer name; `sized` are the totals the caches state themselves."""

    caches: Mapping[CacheKind, Mapping[str, float]] = field(default_factory=dict)
    sized: Mapping[CacheKind, float] = field(default_factory=dict)
    cells: Mapping[CacheKind, int] = field(default_factory=dict)
    state: Mapping[str, float] = field(default_factory=dict)
    state_sized: float | None = None
    compute: Mapping[str, float] = field(default_factory=dict)
    output: Mapping[str, float] = field(default_factory=dict)

    def cache_mib(self, kind: CacheKind) -> float | None:
        """A cache's size: its device lines, or its own total where a fitting pass allocated nothing."""
        lines = sum(self.caches.get(kind, {}).values())
        return lines or self.sized.get(kind)

    def state_mib(self) -> float | None:
        """Recurrent state, in the same way."""
        return sum(self.state.values()) or self.state_sized


@dataclass(frozen=True, kw_only=True)
class Load:
    """One load of a model: its weight buffers in MiB, and the contexts made on it."""

    path: str = ""
    weights: Mapping[str, float] = field(default_factory=dict)
    contexts: tuple[Context, ...] = ()

    @property
    def fitting(self) -> bool:
        """Whether this is the fitting pass, which allocates no weights."""
        return not any(self.weights.values())


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the engine's own breakdown, MiB."""

    kind: str
    name: str
    model: float
    context: float
    compute: float


@dataclass(frozen=True, kw_only=True)
class Logged:
    """What a log says of the last start in it.

    `refused` is an allocation that failed, in MiB by buffer; `checkpoints` are (tokens, MiB).
    """

    loads: tuple[Load, ...] = ()
    projections: tuple[Load, ...] = ()
    breakdowns: tuple[tuple[Row, ...], ...] = ()
    slots: int | None = None
    slot_context: int | None = None
    unified: bool | None = None
    checkpoints: tuple[tuple[int, float], ...] = ()
    refused: Mapping[str, float] = field(default_factory=dict)

    @property
    def checkpoints_mib(self) -> tuple[float, ...]:
        """Sizes of the checkpoints alone."""
        return tuple(mib for _, mib in self.checkpoints)

    @property
    def measured(self) -> bool:
        """Whether any real buffer was logged."""
        return any(load.contexts or not load.fitting for load in self.loads)


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over target and draft, MiB; None is "not measured"."""

    weights_device: float | None
    weights_host: float | None
    kv: float | None
    state: float | None
    compute_device: float | None
    compute_host: float | None


def on_host(name: str) -> bool:
    """Whether a buffer of that name is in host memory."""
    return name.startswith("CPU") or name.endswith("_Host")


def totals(logged: Logged) -> Totals:
    """Add up target and draft; host apart from devices."""
    if not logged.measured:
        return Totals(**dict.fromkeys(Totals.__dataclass_fields__))
    contexts = [context for load in logged.loads for context in load.contexts]
    caches = [sum(lines.values()) for context in contexts for lines in context.caches.values()]
    return Totals(
        weights_device=_side((load.weights for load in logged.loads), host=False),
        weights_host=_side((load.weights for load in logged.loads), host=True),
        kv=sum(caches) if caches else None,
        state=sum(sum(c.state.values()) for c in contexts) if any(c.state for c in contexts) else None,
        compute_device=_side((context.compute for context in contexts), host=False),
        compute_host=_side((context.compute for context in contexts), host=True),
    )


def _side(groups: Iterable[Mapping[str, float]], *, host: bool) -> float | None:
    found = [size for group in groups for name, size in group.items() if on_host(name) is host]
    return sum(found) if found else None


def failure(logged: Logged) -> str:
    """One line for an allocation that failed, "" when none did.

    A crash (exit 139) after such a line is no crash of its own.
    """
    if not logged.refused:
        return ""
    name, size = list(logged.refused.items())[-1]
    last = [c for load in (*logged.projections, *logged.loads) for c in load.contexts]
    sizes = {kind: context.sized.get(kind) for context in last[-1:] for kind in context.sized}
    what = next((kind for kind, mib in sizes.items() if mib and abs(mib - size) < 0.01), "")
    label = {"kv_cache": "KV ", "kv_cache_swa": "SWA KV ", "indexer_cache": "indexer "}.get(what, "")
    return f"out of device memory: {label}{size:.0f} MiB on {name}"


def parse(text: str) -> Logged:
    """Read a log; anything that is not about memory is passed over."""
    reader = _Reader()
    for line in text.splitlines():
        reader.feed(line)
    return reader.result()


class _Reader:
    """Collects loads; mutable only while it reads."""

    def __init__(self) -> None:
        self.start_again()

    def start_again(self) -> None:
        self.all: list[Load] = []
        self.weights: dict[str, float] | None = None
        self.path = ""
        self.contexts: list[Context] = []
        self.context = Context()
        self.kind: CacheKind = "kv_cache"
        self.found = Logged()

    def feed(self, line: str) -> None:
        message = _message(line)
        if isinstance(message, dict):
            self.breakdown(message)
            return
        if any(mark in message for mark in _STARTS):
            self.end_load()
            self.start_again()
        if loaded := _LOADED.search(message):
            self.end_load()
            self.path = loaded[1]
        if any(mark in message for mark in _CONTEXT):
            self.end_context()
        if "creating" in message and "KV cache" in message:
            self.kind = _cache_kind(message)
        self.sizes(message)
        self.facts(message)

    def sizes(self, message: str) -> None:
        for match in _BUFFER.finditer(message):
            self.buffer(match["name"], match["kind"], float(match[3]))
        if cache := _CACHE.search(message):
            sized = {**self.context.sized, self.kind: float(cache[1])}
            cells = {**self.context.cells, self.kind: int(cache[2])}
            self.context = replace(self.context, sized=sized, cells=cells)
            self.kind = "kv_cache"
        if state := _STATE.search(message):
            self.context = replace(self.context, state_sized=float(state[1]))

    def buffer(self, name: str, kind: str, size: float) -> None:
        if kind == "model":
            if self.contexts or self.context != Context():
                self.end_load()
            self.weights = {**(self.weights or {}), name: (self.weights or {}).get(name, 0.0) + size}
        elif kind == "KV":
            own = {**self.context.caches.get(self.kind, {})}
            own[name] = own.get(name, 0.0) + size
            self.context = replace(self.context, caches={**self.context.caches, self.kind: own})
        elif kind == "RS":
            self.context = replace(self.context, state={**self.context.state, name: size})
        elif kind == "compute":
            self.context = replace(self.context, compute={**self.context.compute, name: size})
        elif kind == "output":
            if self.context.compute:
                self.end_context()
            self.context = replace(self.context, output={**self.context.output, name: size})

    def facts(self, message: str) -> None:
        if match := _SLOTS.search(message):
            unified = None if match[3] is None else match[3] == "true"
            self.found = replace(self.found, slots=int(match[1]), slot_context=int(match[2]), unified=unified)
        if match := _CHECKPOINT.search(message):
            made = (*self.found.checkpoints, (int(match[1]), float(match[2])))
            self.found = replace(self.found, checkpoints=made)
        if match := _REFUSED.search(message):
            name = match[1] or "the device"
            size = int(match[2]) / 2**20 if match[2] else float(match[3])
            self.found = replace(self.found, refused={**self.found.refused, name: size})

    def breakdown(self, message: Mapping[str, Any]) -> None:
        rows = tuple(_row(row) for row in message.get("data", {}).get("rows", []))
        self.found = replace(self.found, breakdowns=(*self.found.breakdowns, rows))

    def end_context(self) -> None:
        if self.context != Context():
            self.contexts.append(self.context)
        self.context, self.kind = Context(), "kv_cache"

    def end_load(self) -> None:
        self.end_context()
        if self.weights is not None or self.contexts:
            load = Load(path=self.path, weights=self.weights or {}, contexts=tuple(self.contexts))
            self.all.append(load)
        self.weights, self.contexts, self.path = None, [], ""

    def result(self) -> Logged:
        self.end_load()
        real = _last_of_each([load for load in self.all if not load.fitting])
        if not real and any(c.compute for load in self.all for c in load.contexts if not load.weights):
            real = [load for load in self.all if not load.weights]
        return replace(
            self.found, loads=tuple(real), projections=tuple(load for load in self.all if load not in real)
        )


def _row(row: Mapping[str, Any]) -> Row:
    sizes = {name: float(row.get(name, 0)) for name in ("model", "context", "compute")}
    return Row(kind=str(row.get("kind", "")), name=str(row.get("name", "")), **sizes)


def _last_of_each(loads: list[Load]) -> list[Load]:
    """The last load of every path; loads without a path are all kept."""
    last = {load.path: number for number, load in enumerate(loads)}
    return [load for number, load in enumerate(loads) if not load.path or last[load.path] == number]


def _cache_kind(message: str) -> CacheKind:
    if "indexer" in message:
        return "indexer_cache"
    return "kv_cache" if "non-SWA" in message else "kv_cache_swa" if "SWA" in message else "kv_cache"


def _message(line: str) -> str | dict[str, Any]:
    """The text of a line, or the object of a breakdown line."""
    at = line.find('{"type":')
    if at < 0:
        return line
    try:
        value = json.loads(line[at:])
    except ValueError:
        return line
    if value.get("type") == "log":
        return str(value.get("msg", ""))
    return value if value.get("type") == "fit_memory_breakdown" else ""
