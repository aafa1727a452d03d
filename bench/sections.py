"""The report's content: tables with a description of the plot that belongs to each. No drawing here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bench.compare import judge
from bench.mtp import propose
from bench.results import Point
from bench.sweep import named, shown
from errors import BadInput
from presets.planner.calibrate import Row

PUBLISHED: Final = Path(__file__).resolve().parent / "published.yaml"

Cell = str | float | int | None
Group = Literal["memory", "ubatch", "slots", "cache", "mtp", "load", "compare", "others", "run"]
GROUPS: Final[dict[Group, str]] = {
    "memory": "Memory: predicted against measured",
    "ubatch": "Ubatch: buffer against speed",
    "slots": "Slots: several users at once",
    "cache": "Cache: what a follow-up turn costs",
    "mtp": "MTP: what drafting gains",
    "load": "Load: from start to healthy",
    "compare": "Comparisons: A against B",
    "others": "Other published figures",
    "run": "What was measured, and on what",
}


class Plot(BaseModel):
    """How a table is drawn: which columns, and what for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["bars", "lines", "heat", "pairs", "intervals", "none"]
    x: str = ""
    y: tuple[str, ...] = ()
    by: str | None = None
    unit: str = ""
    log: bool = False


class Source(BaseModel):
    """Where published figures are from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    url: str
    revision: str
    note: str


class Table(BaseModel):
    """Named columns and rows; a cell that is None is unknown, which is not zero."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    group: Group
    title: str
    text: str = ""
    plot: Plot = Plot(kind="none")
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    source: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> Table:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {self.id} has {len(row)} cells for {len(self.columns)} columns")
        unknown = [
            name
            for name in (self.plot.x, *self.plot.y, self.plot.by or "")
            if name and name not in self.columns
        ]
        if unknown:
            raise ValueError(f"the plot of {self.id} names no column: {', '.join(unknown)}")
        return self

    def column(self, name: str) -> list[Cell]:
        place = self.columns.index(name)
        return [row[place] for row in self.rows]


class Published(BaseModel):
    """The file of published figures."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sources: dict[str, Source]
    tables: tuple[Table, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _sourced(self) -> Published:
        for table in self.tables:
            if table.source not in self.sources:
                raise ValueError(f"{table.id} has no source")
        return self


def published(path: Path = PUBLISHED) -> Published:
    """Read the published figures.

    Raises:
        BadInput: the file does not keep to its form.
    """
    import yaml

    try:
        return Published.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (ValidationError, yaml.YAMLError) as error:
        raise BadInput(f"{path} cannot be used", why=str(error)) from error


@dataclass(frozen=True, kw_only=True)
class Content:
    """All tables by group, and the sources they name."""

    tables: tuple[Table, ...]
    sources: Mapping[str, Source]

    def of(self, group: Group) -> list[Table]:
        return [table for table in self.tables if table.group == group]


def content(points: Sequence[Point], others: Published, calibration: Sequence[Row] = ()) -> Content:
    """Our own tables first, the published ones of the same group after them.

    Args:
        calibration: what the planner says of runs that others measured.
    """
    ours = [table for maker in _MAKERS for table in maker(points) if table.rows]
    held = [_calibration(calibration)] if calibration else []
    sources = {**others.sources, CALIBRATION: _CALIBRATION_SOURCE}
    return Content(tables=(*held, *ours, *others.tables), sources=sources)


CALIBRATION: Final = "planner"
_CALIBRATION_SOURCE: Final = Source(
    name="measured by others on gfx1151, as presets/planner/published.yaml lists them",
    url="https://github.com/kksoftwareag/strix-halo-qwen-3.8-flash-next",
    revision="2aecc67d and others",
    note="planned here, from the catalog's outline of each quant and the traits of the tree that ran",
)


def _calibration(rows: Sequence[Row]) -> Table:
    """Our planner beside the published measurements, in GiB."""
    gib = 2**30
    return Table(
        id="calibration", group="memory", title="This planner against what others measured",
        text="Qwen3.8-Flash-Next on gfx1151. Device counts GTT alone, used the drop of MemAvailable; "
        "docs/planner-error.md explains each miss.",
        plot=Plot(kind="pairs", x="run", y=("planned_gib", "measured_gib"), unit="GiB"),
        columns=("run", "counts", "measured_by", "planned_gib", "measured_gib", "error_percent"),
        rows=tuple(
            (row.id, row.counts, row.source, row.planned / gib, row.measured / gib, row.error * 100)
            for row in rows
        ),
        source=CALIBRATION,
    )  # fmt: skip


def subjects(points: Sequence[Point]) -> Iterator[tuple[str, str, list[Point]]]:
    """(slug, name, points) of each thing measured: subject, image and host build."""
    groups: dict[tuple[str, str | None, bool], list[Point]] = {}
    for point in points:
        identity = point.identity
        groups.setdefault((identity.subject, identity.digest, point.quick), []).append(point)
    for number, ((subject, digest, quick), members) in enumerate(groups.items()):
        parts = [subject, *([digest.removeprefix("sha256:")[:12]] if digest else [])]
        yield f"s{number}", ", ".join(parts) + (" (quick)" if quick else ""), members


def _good(points: Sequence[Point], sweep: str) -> list[Point]:
    return [point for point in points if point.sweep == sweep and point.status == "ok"]


def _table(
    identity: str, group: Group, title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]],
    plot: Plot | None = None, text: str = "",
) -> Table:  # fmt: skip
    return Table(
        id=identity, group=group, title=title, text=text, columns=tuple(columns),
        rows=tuple(tuple(row) for row in rows), plot=plot or Plot(kind="none"),
    )  # fmt: skip


_MIB: Final = 2**20
_TERMS: Final = ("weights", "kv", "state", "compute")


def _memory(points: Sequence[Point]) -> Iterator[Table]:
    """Every term both sides know, once per subject and set of server settings."""
    for slug, name, members in subjects(points):
        rows: dict[tuple[str, str], _Error] = {}
        for point in members:
            for term in _TERMS:
                ours, theirs = _sum(point.predicted, term), _sum(point.measured, term)
                if ours is not None and theirs is not None:
                    found = _Error(_server(point), term, _certainty(point, term), ours, theirs)
                    rows.setdefault((found.server, term), found)
        compute = {(row.ours, row.theirs): row for row in reversed(rows.values()) if row.term == "compute"}
        yield _table(
            f"{slug}-compute", "memory", f"Compute buffer: {name}",
            ("server", "certainty", "predicted_mib", "measured_mib"),
            [(row.server, row.certainty, row.ours, row.theirs) for row in reversed(compute.values())],
            Plot(kind="pairs", x="server", y=("predicted_mib", "measured_mib"), unit="MiB"),
            "The planner's figure before the start beside the engine's own in its log; servers alike are "
            "drawn once. A bound may only be above.",
        )  # fmt: skip
        yield _worst(slug, name, list(rows.values()))
        yield _table(
            f"{slug}-errors", "memory", f"Each term: {name}",
            ("server", "term", "certainty", "predicted_mib", "measured_mib", "error_mib", "error_percent"),
            [(*row, row.mib, row.percent) for row in rows.values()],
        )  # fmt: skip


class _Error(NamedTuple):
    """A term of one server, predicted and measured, in MiB."""

    server: str
    term: str
    certainty: str
    ours: float
    theirs: float

    @property
    def mib(self) -> float:
        return self.ours - self.theirs

    @property
    def percent(self) -> float | None:
        return self.mib / self.theirs * 100 if self.theirs else None


def _worst(slug: str, name: str, rows: Sequence[_Error]) -> Table:
    """The error table of the planner: each kind of term with its lowest and highest error."""
    kinds: dict[tuple[str, str], list[_Error]] = {}
    for row in rows:
        kinds.setdefault((row.term, row.certainty), []).append(row)
    return _table(
        f"{slug}-error", "memory", f"Error of the planner: {name}",
        ("term", "certainty", "servers", "lowest_error_mib", "highest_error_mib"),
        [
            (term, certainty, len(found), min(row.mib for row in found), max(row.mib for row in found))
            for (term, certainty), found in kinds.items()
        ],
        text="Predicted less measured; the log rounds to 0.01 MiB a line.",
    )  # fmt: skip


def _sum(values: Mapping[str, float], term: str) -> float | None:
    """A term in MiB, device and host together; None where it is not known."""
    names = (f"{term}_bytes", f"{term}_device_bytes", f"{term}_host_bytes")
    found = [values[name] for name in names if name in values]
    return sum(found) / _MIB if found else None


def _certainty(point: Point, term: str) -> str:
    """How sure the planner is of a term: as sure as of its least sure part."""
    order = ("exact", "measured", "bounded")
    names = (f"{term}_bytes", f"{term}_device_bytes", f"{term}_host_bytes")
    return max((point.certainty.get(name, "exact") for name in names), key=order.index)


def _server(point: Point) -> str:
    """The settings of a point that shape the server."""
    shaping = ("batch", "ubatch", "slots", "checkpoints", "n_max", "speculation", "head")
    parts = [f"{name} {shown(value)}" for name, value in point.settings.items() if name in shaping]
    return f"{point.sweep}: " + (", ".join(parts) or "as the preset says")


def _ubatch(points: Sequence[Point]) -> Iterator[Table]:
    for slug, name, members in subjects(_good(points, "ubatch")):
        rows: list[tuple[Cell, ...]] = []
        for point in members:
            size = point.settings["ubatch"]
            clamped = point.settings.get("batch", size) < size if isinstance(size, int) else False
            depths = sorted({sample["depth"] for sample in point.samples if "depth" in sample})
            for depth in depths or [None]:
                tail = "" if depth is None else f"_d{depth}"
                rows.append((
                    size, "server" if depth is None else f"depth {depth}",
                    f"b {point.settings['batch']}" if clamped else "",
                    point.measured.get("prompt_tps" + tail), point.measured.get("decode_tps" + tail),
                    point.measured.get("ttft_s"), _sum(point.measured, "compute"),
                ))  # fmt: skip
        columns = ("ubatch", "depth", "clamped", "prompt_tps", "decode_tps", "ttft_s", "compute_mib")
        free = [row for row in rows if not row[2]]
        lines = Plot(kind="lines", x="ubatch", by="depth", log=True, unit="tokens/s")
        yield _table(
            f"{slug}-prompt", "ubatch", f"Prompt speed by ubatch: {name}", columns, free,
            lines.model_copy(update={"y": ("prompt_tps",)}),
            "llama-bench of the image; depth is the context already filled.",
        )  # fmt: skip
        yield _table(
            f"{slug}-decode", "ubatch", f"Decode speed by ubatch: {name}", columns, free,
            lines.model_copy(update={"y": ("decode_tps",)}),
        )  # fmt: skip
        once = list({row[0]: (row[0], row[5], row[6]) for row in free}.values())
        yield _table(
            f"{slug}-wait", "ubatch", f"Buffer and waiting by ubatch: {name}",
            ("ubatch", "ttft_s", "compute_mib"), once,
            Plot(kind="lines", x="ubatch", y=("compute_mib",), unit="MiB", log=True),
            "The compute buffer from the start-up log; the time to the first token is in the table.",
        )  # fmt: skip
        yield _table(
            f"{slug}-clamp", "ubatch", f"A batch below the ubatch: {name}", columns,
            [row for row in rows if row[2]],
            text="-b 64 -ub 512 runs passes of 64 and reserves for 64: the buffer is that of -ub 64.",
        )  # fmt: skip


def _slots(points: Sequence[Point]) -> Iterator[Table]:
    for slug, name, members in subjects(_good(points, "slots")):
        rows = [
            (
                point.settings["users"], _run(point), *(point.measured.get(key) for key in _SLOT_COLUMNS),
            )
            for point in members
        ]  # fmt: skip
        columns = ("users", "run", *_SLOT_COLUMNS)
        by = Plot(kind="lines", x="users", by="run", unit="tokens/s")
        yield _table(
            f"{slug}-total", "slots", f"All users together: {name}", columns, rows,
            by.model_copy(update={"y": ("total_tps",)}), "Generated tokens of all users by wall time.",
        )  # fmt: skip
        yield _table(
            f"{slug}-user", "slots", f"Each user: {name}", columns, rows,
            by.model_copy(update={"y": ("user_tps",)}), "Decode speed that one user sees, median.",
        )  # fmt: skip


_SLOT_COLUMNS: Final = ("total_tps", "user_tps", "ttft_s", "acceptance", "clean_share", "mixed_up")


def _run(point: Point) -> str:
    drafting = point.settings.get("speculation")
    tail = "" if drafting is None else ", no drafting" if drafting == "off" else f", {drafting}"
    return f"{point.settings['load']}{tail}"


def _cache(points: Sequence[Point]) -> Iterator[Table]:
    for slug, name, members in subjects(_good(points, "cache")):
        rows: list[tuple[Cell, ...]] = []
        for point in members:
            kept = point.settings.get("checkpoints")
            case = point.settings["talk"] + ("" if kept is None else f", {kept} checkpoints")
            later = point.measured.get("hit_share")
            hit = point.measured.get("edited_hit_share", later)
            rows.append((
                case, *(None if value is None else value * 100 for value in (hit, later)),
                point.measured.get("turn_s"), point.measured.get("cold_s"),
            ))  # fmt: skip
        yield _table(
            f"{slug}-hits", "cache", f"Hit rate: {name}",
            ("case", "hit_percent", "later_hit_percent", "turn_s", "cold_s"), rows,
            Plot(kind="bars", x="case", y=("hit_percent",), unit="%"),
            "Share of the prompt from the cache after the first turn; edited histories on the edited turn.",
        )  # fmt: skip


def _mtp(points: Sequence[Point]) -> Iterator[Table]:
    for slug, name, members in subjects(_good(points, "mtp")):
        grid = [point for point in members if "n_max" in point.settings]
        cells: dict[str, dict[str, Point]] = {}
        for point in grid:
            key = _drafting(point)
            cells.setdefault(key, {})[point.settings["kind"]] = point
        kinds = list(dict.fromkeys(point.settings["kind"] for point in grid))
        rows = [
            (key, *(_of(found, kind, "decode_tps") for kind in kinds), _acceptance(found))
            for key, found in cells.items()
        ]
        proposal = propose(grid)
        yield _table(
            f"{slug}-mtp", "mtp", f"Decode speed by draft setting: {name}",
            ("setting", *kinds, "acceptance"), rows,
            Plot(kind="heat", x="setting", y=tuple(kinds), unit="tokens/s"),
            f"Best: {proposal}." if proposal else "",
        )  # fmt: skip
        yield _heads(slug, name, [point for point in members if "head" in point.settings])


def _heads(slug: str, name: str, points: Sequence[Point]) -> Table:
    rows = [
        (point.settings["head"], point.settings["depth"],
         *(point.measured.get(key) for key in ("decode_tps", "acceptance", "prompt_tps", "ttft_s")))
        for point in points
    ]  # fmt: skip
    return _table(
        f"{slug}-heads", "mtp", f"Heads at depth: {name}",
        ("head", "depth", "decode_tps", "acceptance", "prompt_tps", "ttft_s"), rows,
        Plot(kind="lines", x="depth", y=("decode_tps",), by="head", unit="tokens/s"),
    )  # fmt: skip


def _drafting(point: Point) -> str:
    if not point.settings["n_max"]:
        return "none"
    dice = point.settings.get("synthetic")
    tail = "" if dice is None else f" (accept {dice:g} by dice)"
    return f"n{point.settings['n_max']} p{point.settings['p_min']:g}{tail}"


def _of(found: Mapping[str, Point], kind: str, name: str) -> Cell:
    return found[kind].measured.get(name) if kind in found else None


def _acceptance(found: Mapping[str, Point]) -> Cell:
    values = [point.measured["acceptance"] for point in found.values() if "acceptance" in point.measured]
    return sum(values) / len(values) if values else None


_LOAD_COLUMNS: Final = ("healthy_s", "first_token_s", "teardown_s")
_LOAD_SIZES: Final = ("available_drop_bytes", "gtt_peak_bytes", "returned_bytes", "read_bytes")


def _load(points: Sequence[Point]) -> Iterator[Table]:
    for slug, name, members in subjects(_good(points, "load")):
        rows = [
            (
                f"{point.settings['files']}, turn {point.settings['turn'] + 1}",
                *(point.measured.get(key) for key in _LOAD_COLUMNS),
                _mib(point.predicted.get("total_bytes")),
                *(_mib(point.measured.get(key)) for key in _LOAD_SIZES),
            )
            for point in members
        ]  # fmt: skip
        yield _table(
            f"{slug}-load", "load", f"Start and end: {name}",
            ("start", *_LOAD_COLUMNS, "planned_mib", *(key.replace("bytes", "mib") for key in _LOAD_SIZES)),
            rows,
            Plot(kind="bars", x="start", y=("healthy_s",), unit="s"),
            "Cold: the files were dropped from the page cache, which was checked.",
        )  # fmt: skip


def _mib(value: float | None) -> Cell:
    return None if value is None else value / _MIB


def _compare(points: Sequence[Point]) -> Iterator[Table]:
    sides = _good(points, "compare")
    rows: list[tuple[Cell, ...]] = []
    for number in range(0, len(sides) - 1, 2):
        a, b = sides[number], sides[number + 1]
        for metric, found in judge(a.samples, b.samples).items():
            name = f"{b.identity.subject} against {a.identity.subject}: {metric.split('_')[0]}"
            rows.append((name, found.value, found.low, found.high, found.pairs, found.verdict))
    yield _table(
        "compare", "compare", "B against A, interleaved",
        ("figure", "ratio", "low", "high", "pairs", "verdict"), rows,
        Plot(kind="intervals", x="figure", y=("ratio", "low", "high"), unit="times as good"),
        "Above 1 B is better, for times too. The bar is the 95 % interval of the mean ratio of the pairs.",
    )  # fmt: skip


def _ceiling(points: Sequence[Point]) -> Iterator[Table]:
    rows = [
        (f"{point.settings['streams']} streams", point.measured["core_tps"], point.measured["share"] * 100)
        for point in _good(points, "ceiling")
    ]
    yield _table(
        "ceiling", "run", "What the load generator can take", ("streams", "core_tps", "core_percent"), rows,
        Plot(kind="bars", x="streams", y=("core_tps",), unit="tokens/s per core"),
        "Against a stub that sends each stream 100 tokens/s, every token alone: the dearest case.",
    )  # fmt: skip


def _ran(points: Sequence[Point]) -> Iterator[Table]:
    seen: dict[str, tuple[Cell, ...]] = {}
    for point in (one for one in points if one.sweep != "ceiling"):
        identity = point.identity
        row = (
            identity.subject, identity.model, identity.draft or "none", identity.image,
            _short(identity.digest), identity.engine, _short(identity.pin), _short(identity.series),
            identity.build,
        )  # fmt: skip
        seen.setdefault(str(row), row)
    columns = ("subject", "model", "draft", "image", "digest", "engine", "pin", "series", "build")
    yield _table("identity", "run", "Images and models", columns, list(seen.values()))
    hosts = {tuple(_host(point.host).items()): _host(point.host) for point in points}
    names = list(dict.fromkeys(name for host in hosts.values() for name in host))
    yield _table(
        "host", "run", "Hosts", names or ("host",), [[host.get(n) for n in names] for host in hosts.values()]
    )
    broken = [
        (point.sweep, named(point.settings), point.reason) for point in points if point.status == "failed"
    ]
    yield _table("failed", "run", "Points that failed", ("sweep", "point", "reason"), broken)


def _host(facts: Mapping[str, Any]) -> dict[str, Cell]:
    """Facts that stay the same from point to point, memory in GiB."""
    found: dict[str, Cell] = {k: facts[k] for k in ("cpu", "cores", "kernel", "governor") if k in facts}
    for name in ("memory_bytes", "gtt_total_bytes"):
        if name in facts:
            found[name.replace("_bytes", "_gib")] = round(facts[name] / 2**30, 1)
    return found


def _short(digest: str | None) -> Cell:
    return digest and digest.removeprefix("sha256:")[:12]


_MAKERS: Final = (_memory, _ubatch, _slots, _cache, _mtp, _load, _compare, _ceiling, _ran)
