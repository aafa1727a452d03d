"""A series: the ordered patches of an engine as data, and which of them are on.

Read from `patches/<engine>/series.yaml`. Every patch is pinned by the digest of its diff, ours as well,
so that a file that was cut or edited is seen before it is applied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import requests
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

import documents
import paths
import pypi
import web
from errors import BadInput, CheckFailed, NetworkFailed, nearest
from patches import diff
from patches.engines import FOLDER, Commit, Engine, Sha256, describe

Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]*$")]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Conflict(_Data):
    """Two patches that must not be on together, and why."""

    id: Id
    because: str


class Retire(_Data):
    """When a patch has become needless: the commit that carries the same cure, or a text in the tree.

    `file` and `text`: the patch is to be dropped when `file` of the pristine tree holds `text`.
    """

    commit: str = ""
    file: str = ""
    text: str = ""
    note: str = ""


class Remote(_Data):
    """Where a patch of others is loaded from: one upstream commit, or a pull request at one commit."""

    url: str
    commit: Commit | None = None


class Entry(_Data):
    """One patch of a series.

    `forwarded` has DEP-3's words: no, not-needed, or the address where it was sent. `proved_by` names the
    test that fails without the patch.
    """

    id: Id
    name: str
    file: str = ""
    fetch: Remote | None = None
    sha256: Sha256 | None = None
    purpose: str
    origin: str
    forwarded: str
    enabled: bool
    why: str
    needs: tuple[Id, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    dropped_when: Retire
    proved_by: str
    risk: str

    @model_validator(mode="after")
    def _one_pinned_source(self) -> Entry:
        if bool(self.file) == bool(self.fetch):
            raise ValueError("give exactly one of file and fetch")
        if self.sha256 is None and (self.file or self.enabled):
            raise ValueError("a patch without sha256 cannot be on; ./inv patch.refresh writes it for a file")
        if "/" in self.file:
            raise ValueError("file is a name beside series.yaml")
        return self


class Dropped(_Data):
    """A patch that was carried elsewhere and must not be carried here, with the evidence."""

    id: Id
    purpose: str
    because: str
    evidence: str
    verdict: Literal["upstream", "superseded", "not-reachable", "harmful", "no-effect"]


class Series(_Data):
    """The document `series.yaml`: entries in the order they are applied, and those that were dropped.

    `results` holds, by pin, the digest of the files that the patches of the default selection name, once
    they are applied.
    """

    patches: tuple[Entry, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    results: Mapping[str, Sha256] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, value: object) -> object:
        """A section whose last entry was taken out reads as nothing."""
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _names_add_up(self) -> Series:
        ids = [entry.id for entry in self.patches]
        if len(set(ids)) != len(ids):
            raise ValueError("an id is given twice")
        for place, entry in enumerate(self.patches):
            unknown = set(entry.needs) - set(ids[:place])
            if unknown:
                raise ValueError(f"{entry.id} needs {min(unknown)}, which does not stand before it")
        return self

    def only(self, ids: Sequence[str]) -> Series:
        """The entries of these ids, in this series' order, all on.

        Raises:
            BadInput: an id is unknown.
        """
        known = [entry.id for entry in self.patches]
        for name in ids:
            if name not in known:
                raise BadInput(f"no patch {name!r}", why=nearest(name, known))
        kept = [e.model_copy(update={"enabled": True}) for e in self.patches if e.id in ids]
        return Series(patches=tuple(kept))


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A series entry with its parsed patch, whose digest is the pinned one."""

    entry: Entry
    patch: diff.Patch
    text: bytes


FAULTS: Final = FOLDER / "faults"


def read(folder: Path) -> Series:
    """The series in a folder; an engine without `series.yaml` has an empty one.

    Raises:
        BadInput: the document is wrong; names each field.
    """
    path = folder / "series.yaml"
    if not path.exists():
        return Series()
    return parse(documents.read(path), path)


def parse(document: object, path: Path) -> Series:
    """Check the document of a series; the path stands for it in messages."""
    try:
        return Series.model_validate(document or {})
    except ValidationError as error:
        raise BadInput(f"{path} is wrong", why=describe(error)) from error


def of(engine: Engine) -> Series:
    """The series of an engine."""
    return read(engine.folder)


def chosen(series: Series, *, without: Sequence[str] = (), also: Sequence[str] = ()) -> tuple[Entry, ...]:
    """The entries that are on, in order.

    Args:
        without: ids to leave out. also: ids to add that are off by default.

    Raises:
        BadInput: an unknown id, a patch without a checksum, a need that is not met, or two patches that
            exclude each other.
    """
    known = {entry.id: entry for entry in series.patches}
    for name in (*without, *also):
        if name not in known:
            raise BadInput(f"no patch {name!r} in this series", why=nearest(name, list(known)))
    on = tuple(e for e in series.patches if (e.enabled or e.id in also) and e.id not in without)
    ids = {entry.id for entry in on}
    for entry in on:
        _check_company(entry, ids)
    return on


def load(entries: Sequence[Entry], folder: Path) -> tuple[Loaded, ...]:
    """Read and check the patches of entries.

    Raises:
        BadInput: a file is missing or is no acceptable patch.
        CheckFailed: a patch is not the pinned one.
        NetworkFailed: a patch of others could not be loaded.
    """
    return tuple(_load(entry, folder) for entry in entries)


def digest(loaded: Sequence[Loaded]) -> str:
    """The SHA-256 over the ids and diffs of a series, in order."""
    text = "".join(f"{item.entry.id} {item.patch.digest}\n" for item in loaded)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_company(entry: Entry, ids: set[str]) -> None:
    if entry.sha256 is None:
        raise BadInput(
            f"patch {entry.id} ({entry.name}) cannot be switched on",
            why=f"no checksum of it is known: {entry.why}",
            hint="load it by hand, read it, and set sha256 with ./inv patch.refresh",
        )
    missing = set(entry.needs) - ids
    if missing:
        raise BadInput(f"patch {entry.id} needs {min(missing)}", why="which is off or was left out")
    for conflict in entry.conflicts:
        if conflict.id in ids:
            raise BadInput(
                f"patches {entry.id} and {conflict.id} exclude each other",
                why=conflict.because,
                hint=f"leave one out: --without {entry.id} or --without {conflict.id}",
            )


def _load(entry: Entry, folder: Path) -> Loaded:
    text = _text(entry, folder)
    patch = diff.parse(text, entry.file or (entry.fetch.url if entry.fetch else entry.id))
    if patch.digest != entry.sha256:
        raise CheckFailed(
            f"patch {entry.id} is not the pinned one",
            why=f"its diff has SHA-256 {patch.digest}, series.yaml says {entry.sha256}; it was cut or edited",
            hint=f"./inv patch.refresh --id {entry.id} takes the file as it is now",
        )
    return Loaded(entry=entry, patch=patch, text=text)


def _text(entry: Entry, folder: Path) -> bytes:
    if entry.fetch is not None:
        return _remote(entry.fetch.url, entry)
    try:
        return (folder / entry.file).read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read the patch {folder / entry.file}", why=error.strerror or "") from error


def _remote(url: str, entry: Entry) -> bytes:
    """A patch of others, kept under its checksum once it was loaded and found right."""
    kept = paths.home() / "patches" / f"{entry.sha256}.patch"
    if kept.exists():
        return kept.read_bytes()
    try:
        answer = web.session().get(url, timeout=(5.0, 60.0))
        answer.raise_for_status()
    except requests.RequestException as error:
        raise NetworkFailed(
            f"patch {entry.id} could not be loaded",
            why=f"{url}: {pypi.reason(error)}",
            hint=f"try again, or leave it out: --without {entry.id}",
        ) from error
    if diff.parse(answer.content, url).digest == entry.sha256:
        with paths.replacing(kept) as temporary:
            temporary.write_bytes(answer.content)
    return answer.content
