"""Results: one JSON line per measured point, appended whole, read back for resuming and for the report."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import paths
import say
from errors import BadInput, HostLacks

SCHEMA: Final = 1
Status = Literal["ok", "failed"]


class Identity(BaseModel):
    """What was measured: image, engine and model. A field that cannot be known is None, never a guess."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    subject: str = Field(description="preset, or the name of the model file")
    preset: str | None = None
    image: str | None = Field(default=None, description="reference of the image")
    digest: str | None = Field(default=None, description="digest of the image")
    engine: str | None = None
    pin: str | None = Field(default=None, description="commit of the engine")
    series: str | None = Field(default=None, description="digest of the patch series")
    build: str | None = Field(default=None, description="build_info as the server reports it")
    model: str | None = None
    model_bytes: int | None = None
    draft: str | None = None
    url: str | None = None


class Point(BaseModel):
    """One measured point of a sweep.

    `settings` is what makes the point this one; `samples` are raw, one mapping per repetition;
    `measured` and `predicted` hold single values (bytes end in `_bytes`, seconds in `_s`, tokens per
    second in `_tps`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = SCHEMA
    sweep: str
    settings: dict[str, Any]
    identity: Identity
    host: dict[str, Any]
    status: Status = "ok"
    reason: str | None = None
    time: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    seconds: float = 0.0
    quick: bool = False
    predicted: dict[str, float] = Field(default_factory=dict)
    certainty: dict[str, str] = Field(default_factory=dict, description="of each predicted name")
    measured: dict[str, float] = Field(default_factory=dict)
    samples: list[dict[str, Any]] = Field(default_factory=list)

    @property
    def key(self) -> str:
        return point_key(self.sweep, self.settings, self.identity, quick=self.quick)

    def values(self, name: str, **match: Any) -> list[float]:
        """All samples of one name whose other fields match."""
        return [
            float(sample[name])
            for sample in self.samples
            if sample.get(name) is not None and all(sample.get(k) == v for k, v in match.items())
        ]


def point_key(sweep: str, settings: Mapping[str, Any], identity: Identity, *, quick: bool) -> str:
    """A digest of what makes a point this one, so that a resumed run knows what it has.

    The server's address and its build text are left out: another port is the same point, and the
    build is only known once a server runs (the image's digest stands for it).
    """
    same = identity.model_dump(exclude={"url", "build"})
    text = json.dumps([SCHEMA, sweep, settings, same, quick], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def folder() -> Path:
    """Where results lie: `bench` below Haloforge's home."""
    return paths.home() / "bench"


class Store:
    """The results of one kind of sweep: `<folder>/<sweep>.jsonl`."""

    def __init__(self, sweep: str, *, at: Path | None = None) -> None:
        self.path = (at or folder()) / f"{sweep}.jsonl"

    def append(self, point: Point) -> None:
        """Add one line and flush it to disk; a line torn by a kill before this one is closed first.

        Raises:
            HostLacks: the disk is full, or the file may not be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                if file.tell() and _last_byte(file.fileno(), file.tell()) != b"\n":
                    file.write(b"\n")
                file.write(point.model_dump_json().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise HostLacks(f"cannot write {self.path}", why=error.strerror or str(error)) from error

    def points(self) -> list[Point]:
        """All readable points, oldest first; a later point of the same key replaces the earlier one.

        Raises:
            BadInput: a line is whole JSON but no point, so the file is another version's or edited.
        """
        newest: dict[str, Point] = {}
        for point in self._lines():
            newest.pop(point.key, None)
            newest[point.key] = point
        return list(newest.values())

    def done(self) -> dict[str, Point]:
        """The points a resumed run need not measure again: those that succeeded."""
        return {point.key: point for point in self.points() if point.status == "ok"}

    def _lines(self) -> Iterator[Point]:
        if not self.path.exists():
            return
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                yield Point.model_validate(json.loads(line))
            except json.JSONDecodeError:
                say.warn(f"{self.path}:{number} was cut off while it was written; it is measured again")
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                raise BadInput(
                    f"{self.path}:{number} is no result this version reads",
                    why=f"{where}: {first['msg']}",
                    hint="move the file away; the next run starts a new one",
                ) from error


def _last_byte(descriptor: int, size: int) -> bytes:
    return os.pread(descriptor, 1, size - 1)


def all_points(sweeps: Sequence[str], *, at: Path | None = None) -> list[Point]:
    """Every stored point of the named sweeps."""
    return [point for sweep in sweeps for point in Store(sweep, at=at).points()]
