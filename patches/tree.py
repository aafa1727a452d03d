"""Patched trees: a pristine tree with a series on it, named by what it holds and never changed afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import command
import paths
import say
from errors import BadInput, BuildFailed, CheckFailed, HostLacks
from patches import fetch, manifest, series
from patches.engines import Engine
from patches.overlay import Overlay
from patches.states import State, Verdict, explain, judge


@dataclass(frozen=True, kw_only=True)
class PatchedTree:
    """A tree ready to be built.

    `identity` (pin, digest of the series, and the names of planted faults) is fit for a tag or a folder
    name. `patches` holds (id, digest of the diff) in the order they were applied.
    """

    path: Path
    engine: Engine
    series_digest: str
    identity: str
    patches: tuple[tuple[str, str], ...]
    digest: str


def patched(
    engine: Engine, *, without: Sequence[str] = (), also: Sequence[str] = (), faults: Sequence[str] = ()
) -> PatchedTree:
    """The engine's tree with its series applied, made if it is not there yet.

    Args:
        without: patches to leave out. also: patches to add that are off by default.
        faults: planted faults, for tests of the checks; they show in the identity.

    Raises:
        BuildFailed: a patch does not apply, or needs not be applied any more; nothing was written.
        BadInput, CheckFailed, NetworkFailed, HostLacks: see `fetch.fetched` and `series`.
    """
    base = fetch.fetched(engine)
    items = _items(engine, without, also, faults)
    total = series.digest(items)
    identity = _identity(engine, total, faults)
    place = paths.home() / "trees" / f"{engine.name}-{identity}"
    names = tuple((item.entry.id, item.patch.digest) for item in items)
    with fetch.host_faults(place), fetch.locked(place):
        digest = _present(place, base.digest, total)
        if digest:
            say.step("patch", f"{engine.name} {identity} is here and unchanged")
        else:
            usual = not (without or also or faults)
            digest = _make(engine, items, base, place, total, check_result=usual)
            shown = ", ".join(name for name, _ in names) or "none"
            say.step("patch", f"{engine.name} {identity}: {len(names)} patches on ({shown})")
    return PatchedTree(
        path=place / "tree",
        engine=engine,
        series_digest=total,
        identity=identity,
        patches=names,
        digest=digest,
    )


def identity(engine: Engine) -> str:
    """The identity that the tree of an engine with its whole series has, without fetching it."""
    return _identity(engine, series.digest(_items(engine, (), (), ())))


def _identity(engine: Engine, total: str, faults: Sequence[str] = ()) -> str:
    return "-".join([engine.pin, total[:12], *(f"fault-{name}" for name in faults)])


def status(
    engine: Engine, tree: Path | None = None, *, without: Sequence[str] = (), also: Sequence[str] = ()
) -> list[Verdict]:
    """The state of every patch that is on, against the pristine tree or any other folder.

    Raises:
        BadInput: `tree` is no folder.
    """
    if tree is not None and not tree.is_dir():
        raise BadInput(f"there is no folder {tree}")
    items = _items(engine, without, also, ())
    return judge(engine, items, tree if tree is not None else fetch.fetch(engine))[0]


def touched_digest(root: Path, items: Sequence[series.Loaded]) -> str:
    """The digest of only those files that a series names, after it was applied.

    Other than the digest of the whole tree it does not depend on what else a source ships.
    """
    names = sorted({file.path for item in items for file in item.patch.files})
    entries = {
        name: manifest.Entry(
            mode="100755" if (root / name).stat().st_mode & 0o100 else "100644",
            sha256=manifest.content_digest(root / name),
            size=0,
            mtime_ns=0,
        )
        for name in names
        if (root / name).is_file()
    }
    return manifest.digest(entries)


def _items(
    engine: Engine, without: Sequence[str], also: Sequence[str], faults: Sequence[str]
) -> tuple[series.Loaded, ...]:
    own = series.load(series.chosen(series.of(engine), without=without, also=also), engine.folder)
    if not faults:
        return own
    planted = series.read(series.FAULTS)
    wanted = series.chosen(planted.only(faults))
    return own + series.load(wanted, series.FAULTS)


def _present(place: Path, base: str, total: str) -> str:
    """The digest of the tree if it is complete, made of these parts, and unchanged; else nothing.

    Raises:
        CheckFailed: somebody edited it.
    """
    try:
        record = json.loads((place / "record.json").read_text(encoding="utf-8"))
        before = manifest.load(place / "manifest.json")
    except (OSError, ValueError):
        return ""
    if (record.get("base"), record.get("series")) != (base, total):
        return ""
    now = manifest.scan(place / "tree", before)
    if manifest.digest(now) != record["tree"]:
        wrong = manifest.differences(before, now)
        raise CheckFailed(
            f"the patched tree {place.name} was changed after it was made",
            why=f"{len(wrong)} files differ, the first is {wrong[0] if wrong else '?'}",
            hint=f"to keep the change as a patch use ./inv patch.new; to discard it: rm -r {place}",
        )
    return str(record["tree"])


def _make(
    engine: Engine,
    items: Sequence[series.Loaded],
    base: fetch.Fetched,
    place: Path,
    total: str,
    *,
    check_result: bool,
) -> str:
    verdicts, overlay = judge(engine, items, base.path)
    _stop_unless_all_apply(engine, verdicts)
    with whole(place) as work:
        copy(base.path, work / "tree")
        write(overlay, work / "tree")
        made = manifest.scan(work / "tree", base.manifest)
        _check_touched(base.manifest, made, items)
        expected = series.of(engine).results.get(engine.pin)
        if check_result and expected and touched_digest(work / "tree", items) != expected:
            raise CheckFailed(
                "the patched files are not those on record",
                why=f"series.yaml of {engine.name} says {expected} for {engine.pin}",
                hint=f"./inv patch.refresh --engine {engine.name} after you have looked at the difference",
            )
        digest = manifest.digest(made)
        manifest.save(made, work / "manifest.json")
        record = {
            "engine": engine.name,
            "pin": engine.pin,
            "base": base.digest,
            "series": total,
            "patches": [[item.entry.id, item.patch.digest] for item in items],
            "tree": digest,
        }
        with paths.replacing(work / "record.json") as file:
            file.write_text(json.dumps(record, indent=1), encoding="utf-8")
    return digest


@contextlib.contextmanager
def whole(place: Path) -> Iterator[Path]:
    """A folder that appears under its name complete or not at all; yields where to fill it."""
    work = place.with_name(f".{place.name}.partial-{os.getpid()}")
    try:
        work.mkdir(parents=True)
        yield work
        if place.exists():
            shutil.rmtree(place)
        work.rename(place)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def copy(tree: Path, target: Path) -> None:
    """Copy a tree with its times, by which `manifest.scan` knows the files that nobody touched.

    Blocks are shared where the file system can (btrfs, xfs).
    """
    done = command.run(["cp", "-a", "--reflink=auto", tree, target], env={"LC_ALL": "C"}, check=False)
    if done.code:
        raise HostLacks(f"cannot copy the tree to {target}", why=done.err.strip().splitlines()[-1])


def write(overlay: Overlay, tree: Path) -> None:
    """Put the changes of an overlay into a tree on disk, each file whole or not at all."""
    for name, file in overlay.changed.items():
        place = tree / name
        if file is None:
            place.unlink()
            continue
        with paths.replacing(place) as temporary:
            temporary.write_bytes(file.content)
            temporary.chmod(0o755 if file.executable else 0o644)


def _stop_unless_all_apply(engine: Engine, verdicts: Sequence[Verdict]) -> None:
    wrong = [verdict for verdict in verdicts if verdict.state is not State.APPLIES]
    if not wrong:
        return
    first = wrong[0]
    hint = {
        State.UPSTREAM: f"./inv patch.drop {first.id} --engine {engine.name}",
        State.FOREIGN: f"./inv fetch --engine {engine.name}",
    }.get(first.state, "edit the patch to fit, then ./inv patch.refresh; or leave it out: --without ID")
    raise BuildFailed(
        f"the series of {engine.name} does not apply to {engine.pin}; nothing was written",
        why="\n        ".join("\n".join(explain(verdict) for verdict in wrong).splitlines()),
        hint=hint,
    )


def _check_touched(
    before: manifest.Manifest, after: manifest.Manifest, items: Sequence[series.Loaded]
) -> None:
    """The files that differ must be among those the patches name, and nothing else was copied wrong."""
    named = {file.path for item in items for file in item.patch.files}
    stray = set(manifest.differences(before, after)) - named
    if stray:
        raise CheckFailed("a file changed that no patch names", why=min(stray))
