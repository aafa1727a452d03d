"""Building an image: base, context, BuildKit, record. What is done is kept: a build that was cut goes on."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import tomllib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import command
import paths
import say
from errors import BadInput, BuildFailed, CheckFailed, HostLacks, NetworkFailed
from images import base as bases
from images import daemon, records
from images.base import Base
from images.failures import explain
from images.flavours import Flavour
from images.progress import Progress
from images.recipe import Recipe, build_arguments, check_options, files, jobs_for, labels, recipe
from images.records import ImageRecord
from patches.fetch import host_faults
from patches.tree import PatchedTree

_NOT_COMPILED: Final = frozenset({".git", ".github", "benches", "docs", "gguf-py", "media", "models", "pocs"})
_FREE_BYTES: Final = 3 << 30


def build(
    flavour: Flavour,
    tree: PatchedTree,
    *,
    jobs: int | None = None,
    push: str | None = None,
    base: str | Base = "",
    ccache: str = "default",
    fresh: bool = False,
) -> ImageRecord:
    """The image of a flavour and a tree; built if the engine does not have it.

    Args:
        jobs: compile jobs; by default what processors and free memory allow.
        push: a reference (`registry/name:tag`) to push to; the record then names the pushed digest.
        base: a base or its name, by default the flavour's first.
        ccache: the name of the compiler cache. fresh: run every step anew but the packages'.

    Raises:
        BadInput: the base is not of this flavour, or an option is unknown to the engine.
        BuildFailed, HostLacks, NetworkFailed, CheckFailed: see `failures.explain` and `base.ensure`.
    """
    if jobs is not None and jobs < 1:
        raise BadInput(f"--jobs {jobs} builds nothing", hint="./inv build --jobs 1")
    made = recipe(flavour, _base(flavour, base), tree.engine, tree.identity)
    found = None if fresh else _existing(made)
    if found is None:
        with host_faults(paths.home()), _alone():
            found = (None if fresh else _existing(made)) or _build(
                made, tree, jobs=jobs, ccache=ccache, fresh=fresh
            )
    else:
        say.step("build", f"{found.ref} is here ({say.size(found.size)}); nothing to do")
    return _pushed(found, push) if push else found


def _base(flavour: Flavour, base: str | Base) -> Base:
    return base if isinstance(base, Base) else bases.load(base or flavour.bases[0])


def _existing(made: Recipe) -> ImageRecord | None:
    found = daemon.labelled({"io.haloforge.recipe": made.digest})
    return records.of(found[0]) if found else None


def _build(made: Recipe, tree: PatchedTree, *, jobs: int | None, ccache: str, fresh: bool) -> ImageRecord:
    check_options(made, tree.path)
    _room_on_disk()
    image = bases.ensure(made.base)
    count = jobs or jobs_for(made.flavour, _available_memory(), len(os.sched_getaffinity(0)))
    log = _log_file(f"build-{made.flavour.name}")
    say.step("build", f"{made.tag} with {count} jobs (log: {log})")
    started = time.monotonic()
    word = uuid.uuid4().hex if fresh else ""
    arguments = build_arguments(made, image, epoch=epoch(tree), ccache=ccache, fresh=word)
    words = [
        word
        for pair in labels(made, tree, image, version=_version()).items()
        for word in _option("--label", *pair)
    ]
    words += [
        "--load",
        "--provenance=false",
        "--tag",
        made.tag,
    ]
    with context(tree.path) as folder, _jobs_file(count) as secret:
        argv = buildx(folder, target=made.flavour.name, arguments=arguments, secret=secret, words=words)
        run_buildkit(argv, log=log, jobs=count)
    record = records.of(made.tag)
    if record is None or record.recipe != made.digest:
        raise BuildFailed(f"{made.tag} is not there after the build", hint=f"the whole log: {log}")
    say.step("build", f"{record.ref}: {say.size(record.size)} in {time.monotonic() - started:.0f} s")
    return record


def run_buildkit(argv: list[str], *, log: Path, jobs: int) -> None:
    """Run a build to its end, with progress; the log keeps every line.

    Raises:
        HaloforgeError: the build failed; see `failures.explain`.
    """
    with Progress(log=log) as progress:
        code = command.stream(argv, progress.line)
    if code:
        raise explain(log.read_text(encoding="utf-8"), log=log, jobs=jobs)


def probe(flavour: Flavour, tree: PatchedTree, *, base: str | Base = "") -> Path:
    """Prove that a flavour's base can build for its device: CMake configures and one kernel compiles.

    Nothing is kept but BuildKit's cache. Returns the log.

    Raises: as `build`.
    """
    made = recipe(flavour, _base(flavour, base), tree.engine, tree.identity)
    check_options(made, tree.path)
    with host_faults(paths.home()):
        image = bases.ensure(made.base)
    log = _log_file(f"probe-{flavour.name}")
    word = uuid.uuid4().hex
    arguments = build_arguments(made, image, epoch=epoch(tree), ccache="default", fresh=word)
    with host_faults(paths.home()), _alone(), context(tree.path) as folder, _jobs_file(1) as secret:
        words = ["--output", "type=cacheonly"]
        run_buildkit(
            buildx(folder, target="probe", arguments=arguments, secret=secret, words=words), log=log, jobs=1
        )
    return log


def buildx(
    folder: Path, *, target: str, arguments: Mapping[str, str], secret: Path, words: Sequence[str]
) -> list[str]:
    """The command line of one build; `words` are what differs between uses."""
    argv = [
        "docker",
        "buildx",
        "build",
        "--builder",
        daemon.context(),
        "--progress",
        "plain",
        "--target",
        target,
    ]
    argv += ["--secret", f"id=jobs,src={secret}"]
    argv += [word for pair in arguments.items() for word in _option("--build-arg", *pair)]
    return [*argv, *words, str(folder)]


def _option(flag: str, name: str, value: str) -> list[str]:
    return [flag, f"{name}={value}"]


def _log_file(name: str) -> Path:
    return paths.home() / "logs" / f"{name}-{time.strftime('%Y%m%dT%H%M%S')}.log"


def epoch(tree: PatchedTree) -> int:
    """The time of every file in the image, seconds since 1970: SOURCE_DATE_EPOCH, else the pin's review."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if given:
        if not given.isdigit():
            raise BadInput(f"SOURCE_DATE_EPOCH={given} is not a number of seconds")
        return int(given)
    day = tree.engine.reviewed
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


@contextmanager
def context(tree: Path) -> Iterator[Path]:
    """A folder for BuildKit: the Dockerfile, our programs, and below `src` the tree without its unused parts.

    The tree's files are linked, not copied, where the file system allows it.
    """
    place = paths.home() / "build"
    place.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="context-", dir=place))
    try:
        (folder / "programs").mkdir()
        for name, path in files():
            shutil.copy(path, folder / name if name == "Dockerfile" else folder / "programs" / name)
        _link_tree(tree, folder / "src")
        yield folder
    finally:
        shutil.rmtree(folder)


def _link_tree(tree: Path, target: Path) -> None:
    """Link a tree's files below `target`; symbolic links stay what they are. The first fault ends it."""
    for folder, folders, names in os.walk(tree):
        here = target / Path(folder).relative_to(tree)
        here.mkdir()
        if Path(folder) == tree:
            folders[:] = [name for name in folders if name not in _NOT_COMPILED]
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in [*names, *links]:
            _link(Path(folder, name), here / name)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


@contextmanager
def _jobs_file(count: int) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile("w", suffix=".jobs") as file:
        file.write(str(count))
        file.flush()
        yield Path(file.name)


@contextmanager
def _alone() -> Iterator[None]:
    """One build at a time in this home; what an earlier, killed one left behind is removed."""
    place = paths.home() / "build"
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say.step("build", "another build is running; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left in place.glob("context-*"):
            shutil.rmtree(left)
        yield


def _room_on_disk() -> None:
    root = Path(daemon.docker("info", "--format", "{{.DockerRootDir}}").out.strip())
    if root.is_dir() and (free := shutil.disk_usage(root).free) < _FREE_BYTES:
        raise HostLacks(
            "the disk is nearly full",
            why=f"{say.size(free)} free below {root}, a build needs {say.size(_FREE_BYTES)}",
            hint="docker system df, then docker builder prune",
        )


def _available_memory() -> int:
    """MemAvailable, bytes."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def _version() -> str:
    with (paths.ROOT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def _pushed(record: ImageRecord, ref: str) -> ImageRecord:
    """Push under a reference and name the image by the digest the registry gave it."""
    repository = _repository(ref)
    daemon.docker("tag", record.id, ref)
    done = daemon.docker("push", ref, check=False, timeout=None)
    if done.code:
        raise _push_failure(ref, done.err.strip() or done.out.strip())
    found = daemon.inspect(record.id) or {}
    pushed = [entry for entry in found.get("RepoDigests") or [] if entry.startswith(f"{repository}@")]
    if not pushed:
        raise CheckFailed(f"{ref} was pushed, but the engine names no digest for it", why=done.out[-300:])
    say.step("push", pushed[-1])
    return records.parse({**found, "RepoTags": [], "RepoDigests": pushed[-1:]}, record.help_text)


def _repository(ref: str) -> str:
    name = ref.rpartition("/")[2]
    if "@" in ref or ":" not in name:
        raise BadInput(
            f"{ref} cannot be pushed to",
            why="it needs a name and a tag",
            hint="--push HOST/NAME:TAG",
        )
    return ref[: ref.rindex(":")]


def _push_failure(ref: str, text: str) -> NetworkFailed:
    last = text.splitlines()[-1] if text else "it printed nothing"
    hint = "docker login" if "denied" in text or "unauthorized" in text else "is the registry reachable?"
    return NetworkFailed(f"{ref} was not pushed", why=last, hint=hint)
