"""`bench.overhead`: what Haloforge adds to the plain tools it drives, as ratios measured in one run.

Each figure stands beside the bare way to the same end on the same machine, measured in turn, so that the
ratio says something even where the machine is busy. Seconds are medians where a thing is cheap enough to
repeat. Nothing is asserted: GOALS stand in the table to be read against.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import command
import documents
import paths
import web
from errors import BadInput, CheckFailed, nearest
from images import base as bases
from images import build as builder
from images import flavours, recipe
from images.records import ImageRecord
from patches import engines
from patches import tree as trees
from patches.tree import PatchedTree

REPEATS: Final = 15
INV: Final = str(paths.ROOT / "inv")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison: ours against the bare way, in `unit`; the goal is a sentence."""

    name: str
    ours: float
    bare: float | None
    unit: str
    goal: str

    def to_json(self) -> dict[str, Any]:
        """The row with its ratio."""
        ratio = None if self.bare is None else round(self.ours / self.bare, 3)
        return {**dataclasses.asdict(self), "ratio": ratio}


def measure(only: Sequence[str], preset: str) -> list[Row]:
    """The parts by name; all of them if none is named.

    Raises:
        BadInput: a part that does not exist.
    """
    parts: dict[str, Callable[[], list[Row]]] = {
        "startup": startup,
        "deploy": lambda: deployment(preset),
        "build": building,
    }
    for name in only:
        if name not in parts:
            raise BadInput(f"there is no part {name}", hint=nearest(name, list(parts)))
    return [row for name, part in parts.items() if not only or name in only for row in part()]


def startup() -> list[Row]:
    """`./inv --list` against importing Invoke, and against Invoke without the wrapper."""
    python = sys.executable
    listed, imported, plain = _in_turn(
        [INV, "--list"],
        [python, "-c", "import invoke"],
        [python, "-P", "-m", "invoke", "--search-root", str(paths.ROOT), "--list"],
    )
    return [
        Row(
            name="./inv --list / python -c 'import invoke'",
            ours=listed,
            bare=imported,
            unit="s",
            goal="<= 2x",
        ),
        Row(name="./inv --list / invoke --list", ours=listed, bare=plain, unit="s", goal="<= 0.1 s more"),
    ]


def _in_turn(*commands: list[str]) -> list[float]:
    """Median wall time of each command, run A B C A B C ... so that all see the same machine."""
    walls: list[list[float]] = [[] for _ in commands]
    for _ in range(REPEATS):
        for argv, found in zip(commands, walls, strict=True):
            found.append(_wall(argv))
    return [statistics.median(found) for found in walls]


def _wall(argv: list[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise CheckFailed(
            f"{argv[0]} ended with {done.returncode}", why=done.stderr.decode(errors="replace")[-500:]
        )
    return time.perf_counter() - began


def deployment(preset: str) -> list[Row]:
    """A deploy with everything present, to healthy, against `docker run` of the same command."""
    _deploy(preset)
    again = _wall([INV, "deploy", "--preset", preset])
    compose = documents.read(paths.home() / "deployments" / "current" / "compose.yaml")
    (service,) = compose["services"].values()
    url = _url(service)
    _wall([INV, "stop"])
    bare = _until_healthy(url, lambda: _docker_run(service))
    ours = _until_healthy(url, lambda: _deploying(preset))
    return [
        Row(
            name="deploy to healthy / docker run to healthy",
            ours=ours,
            bare=bare,
            unit="s",
            goal="<= 2 s more",
        ),
        Row(name="deploy with nothing to do", ours=again, bare=None, unit="s", goal="< 5 s"),
    ]


def _deploy(preset: str) -> None:
    _wall([INV, "deploy", "--preset", preset])


def _url(service: dict[str, Any]) -> str:
    port = service["ports"][0]
    return f"http://{port['host_ip']}:{port['published']}/health"


@contextmanager
def _deploying(preset: str) -> Iterator[None]:
    argv = [INV, "deploy", "--preset", preset]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        yield
        if process.wait():
            raise CheckFailed("the deploy failed", hint=f"./inv deploy --preset {preset}")


@contextmanager
def _docker_run(service: dict[str, Any]) -> Iterator[None]:
    """The same image, entry point, command and mounts, started by hand and removed again."""
    name = f"haloforge-bench-{uuid.uuid4().hex[:8]}"
    entry, *rest = service["entrypoint"]
    words = ["docker", "run", "-d", "--name", name, "--read-only", "--cap-drop", "ALL", "--tmpfs", "/tmp"]  # noqa: S108
    for mount in service.get("volumes", []):
        words += ["-v", f"{mount['source']}:{mount['target']}:ro"]
    for port in service["ports"]:
        words += ["-p", f"{port['host_ip']}:{port['published']}:{port['target']}"]
    for key, value in service.get("environment", {}).items():
        words += ["-e", f"{key}={value}"]
    words += ["--user", str(service["user"]), "--entrypoint", entry]
    words += [service["image"], *rest, *(str(word).replace("$$", "$") for word in service["command"])]
    try:
        command.run(words)
        yield
    finally:
        command.run(["docker", "rm", "-f", name])


def _until_healthy(url: str, start: Callable[[], Any]) -> float:
    """Seconds from the start of a way to run the server until /health answers 200."""
    session = web.session(local=True)
    began = time.perf_counter()
    with start():
        while time.perf_counter() - began < 300:
            try:
                if session.get(url, timeout=2).status_code == 200:
                    return time.perf_counter() - began
            except OSError:
                pass
            time.sleep(0.02)
    raise CheckFailed(f"{url} was not healthy within five minutes")


def building() -> list[Row]:
    """The cpu image built cold against bare CMake and Ninja, and built again after one touched file."""
    flavour = flavours.load("cpu")
    tree = trees.patched(engines.load())
    cache = f"bench-{uuid.uuid4().hex[:8]}"
    with _touched(tree) as changed:
        cold, record = _timed(lambda: builder.build(flavour, tree, ccache=cache, fresh=True))
        warm, _ = _timed(lambda: builder.build(flavour, changed, ccache=cache, fresh=True))
    bare = _bare_build(flavour, tree)
    mib = record.size / (1 << 20)
    return [
        Row(name="image build / cmake + ninja", ours=cold, bare=bare, unit="s", goal="<= 1.15x"),
        Row(
            name="rebuild after one touched file / cold build",
            ours=warm,
            bare=cold,
            unit="s",
            goal="<= 0.15x",
        ),
        Row(name="size of the cpu image", ours=mib, bare=None, unit="MiB", goal="<= 110 MiB"),
    ]


def _timed(work: Callable[[], ImageRecord]) -> tuple[float, ImageRecord]:
    began = time.perf_counter()
    record = work()
    return time.perf_counter() - began, record


@contextmanager
def _touched(tree: PatchedTree) -> Iterator[PatchedTree]:
    """A copy of the tree with one source file changed in a way that changes its object."""
    place = paths.home() / "build"
    place.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="touched-", dir=place))
    try:
        copy = folder / "tree"
        shutil.copytree(tree.path, copy, symlinks=True)
        source = copy / "src" / "llama-sampler.cpp"
        source.chmod(0o644)
        source.write_text(source.read_text() + f'\nextern const char * const touched = "{folder.name}";\n')
        yield dataclasses.replace(tree, path=copy, identity=f"{tree.identity}-touched")
    finally:
        shutil.rmtree(folder)


def _bare_build(flavour: flavours.Flavour, tree: PatchedTree) -> float:
    """CMake and Ninja by hand in the compilers' stage of the same image: no cache, same options and jobs."""
    made = recipe.recipe(flavour, bases.load(flavour.bases[0]), tree.engine, tree.identity)
    arguments = recipe.build_arguments(made, bases.ensure(made.base), epoch=0, ccache="default")
    tag = "haloforge-bench/tools"
    with builder.context(tree.path) as folder, tempfile.NamedTemporaryFile("w") as secret:
        words = ["--load", "--provenance=false", "--tag", tag]
        argv = builder.buildx(
            folder, target="tools", arguments=arguments, secret=Path(secret.name), words=words
        )
        command.run(argv)
    options = " ".join(f"-D{name}={value}" for name, value in sorted(made.cmake.items()))
    jobs = recipe.jobs_for(flavour, _available(), len(os.sched_getaffinity(0)))
    script = (
        f"cmake -S /src -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release {options} >/dev/null && "
        f"cmake --build /build -j {jobs} --target {' '.join(flavour.targets)} >/dev/null"
    )
    return _wall(["docker", "run", "--rm", "-v", f"{tree.path}:/src:ro", tag, "sh", "-c", script])


def _available() -> int:
    from compose.doctor_facts import MEMORY

    return MEMORY.ask().available


def table(rows: list[Row]) -> str:
    """One line per row: ours, the bare way, the ratio, the goal."""
    lines = [f"{'':50}{'ours':>9}{'bare':>9}{'ratio':>8}  goal"]
    for row in rows:
        bare = "" if row.bare is None else f"{row.bare:.2f}"
        ratio = "" if row.bare is None else f"{row.ours / row.bare:.2f}"
        lines.append(f"{row.name:50}{row.ours:>7.2f} {row.unit[:3]:<3}{bare:>7}{ratio:>8}  {row.goal}")
    return "\n".join(lines)
