"""How the verified download compares: with curl and sha256sum, with the Hub's client, after a kill.

Everything runs on loopback against the local Hub of the tests, in one run, and is told as ratios.

    python -m bench.download [--gib 4] [--turns 3] [--folder DIR] [--hf-python PYTHON]

`--hf-python` names an interpreter that has `huggingface_hub`; without it that comparison is left out, aloud.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import web
from errors import HostLacks
from presets import download, models_header
from presets.download import Options, Remote
from presets.download_door import Door
from presets.download_part import sha256_of
from presets.planner import ask
from tests.contract.hub_server import Content, HubServer
from tests.makers import hollow, shapes

REPO: Final = "org/repo"
REVISION: Final = "0123456789abcdef0123456789abcdef01234567"
SHARDS: Final = 4
CLIENT: Final = """
import sys
from huggingface_hub import snapshot_download
snapshot_download(sys.argv[1], revision=sys.argv[2], local_dir=sys.argv[3], max_workers=4)
"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One comparison: seconds or bytes of ours and of the other, and their ratio against the goal."""

    what: str
    ours: float
    other: float
    goal: float

    @property
    def ratio(self) -> float:
        """Ours as a multiple of the other."""
        return self.ours / self.other

    def line(self) -> str:
        """As it is printed."""
        met = "met" if self.ratio <= self.goal else "MISSED"
        figures = f"{self.ours:>14.2f} {self.other:>14.2f} {self.ratio:>7.3f}"
        return f"{self.what:<60} {figures}  goal {self.goal} {met}"


def serve(files: list[tuple[str, Path, str]], pipe: Connection) -> None:
    """The Hub in a process of its own, so that it takes no time from the client; ends when told."""
    with HubServer() as hub:
        for name, path, sha256 in files:
            content = Content(sha256=sha256, size=path.stat().st_size, path=path)
            hub.files.setdefault((REPO, REVISION), {})[name] = content
            hub.blobs[sha256] = content
        pipe.send(hub.url)
        while pipe.recv() == "sent":
            pipe.send(hub.sent)


@contextmanager
def hub_process(files: list[tuple[str, Path, str]]) -> Iterator[tuple[str, Callable[[], int]]]:
    """A running Hub: its address, and how many bytes of bodies it has sent so far."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(files, there), daemon=True)
    process.start()

    def sent() -> int:
        here.send("sent")
        return int(here.recv())

    try:
        yield here.recv(), sent
    finally:
        here.send("end")
        process.join(5)


def random_files(folder: Path, size: int) -> list[tuple[str, Path, str]]:
    """Shards that begin like GGUFs; their content repeats a random MiB, which no step here can exploit."""
    noise = os.urandom(1 << 20)
    found = []
    for number in range(1, SHARDS + 1):
        path = folder / f"m-{number:05d}-of-{SHARDS:05d}.gguf"
        with path.open("wb") as out:
            out.write(b"GGUF" + number.to_bytes(4, "little"))
            for _ in range(size // SHARDS >> 20):
                out.write(noise)
        found.append((path.name, path, sha256_of(path)))
    return found


def remotes(url: str, files: list[tuple[str, Path, str]], folder: Path) -> list[Remote]:
    """The files as the downloader is told of them."""
    home = Door(endpoint=url, made=lambda: web.session(local=True))
    return [
        Remote(
            url=home.file_url(REPO, REVISION, name),
            target=folder / name,
            size=path.stat().st_size,
            sha256=sha256,
            door=home,
            revision=REVISION,
        )
        for name, path, sha256 in files
    ]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Wall time and processor time in seconds."""

    wall: float
    processor: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(wall=self.wall + other.wall, processor=self.processor + other.processor)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(wall=self.wall - other.wall, processor=self.processor - other.processor)


def cost(action: Callable[[], object]) -> Cost:
    """What an action takes, in this process and in the programs that it runs."""
    started, used = time.monotonic(), _processor()
    action()
    return Cost(wall=time.monotonic() - started, processor=_processor() - used)


def _processor() -> float:
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, who))


def compared(what: str, ours: Cost, other: Cost, goal: float) -> list[Measured]:
    """Wall time, and processor time, which a busy machine hardly changes."""
    return [
        Measured(what=f"{what}, s", ours=ours.wall, other=other.wall, goal=goal),
        Measured(what=f"{what}, processor s", ours=ours.processor, other=other.processor, goal=goal),
    ]


def program(*words: str | Path, env: dict[str, str] | None = None) -> None:
    """Run a program quietly; a failure ends the benchmark."""
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **(env or {})})


def against_curl(url: str, files: list[tuple[str, Path, str]], folder: Path) -> list[Measured]:
    """Ours (bytes, sha256, flush to disk, rename) against curl, then sha256sum."""
    if shutil.which("curl") is None:
        raise HostLacks("curl is not installed", hint="apt-get install curl")
    ours, theirs = folder / "ours", folder / "theirs"
    theirs.mkdir()
    wanted = remotes(url, files, ours)
    took = cost(lambda: download.fetch_all(wanted, Options()))
    shutil.rmtree(ours)
    words: list[str | Path] = ["curl", "-sSfL", "--parallel", "--parallel-max", str(SHARDS)]
    for remote in wanted:
        words += ["-o", theirs / remote.name, remote.url]
    names = [theirs / remote.name for remote in wanted]
    curl = cost(lambda: program(*words)) + cost(lambda: program("sha256sum", *names))
    flushed = curl + cost(lambda: program("sync", *names))
    shutil.rmtree(theirs)
    return [
        *compared("verified download : curl + sha256sum", took, curl, 0.75),
        *compared("the same : curl + sha256sum + sync", took, flushed, 0.75),
    ]


def against_hf(url: str, files: list[tuple[str, Path, str]], folder: Path, python: str) -> list[Measured]:
    """Ours against the Hub's own client, which does not hash; its import is not counted."""
    ours, theirs = folder / "ours", folder / "theirs"
    env = {
        "HF_ENDPOINT": url,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(folder / "hf"),
        "NO_PROXY": "127.0.0.1",
    }
    env |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    start = cost(lambda: program(python, "-c", CLIENT.splitlines()[2]))
    hf = cost(lambda: program(python, "-c", CLIENT, REPO, REVISION, theirs, env=env)) - start
    shutil.rmtree(theirs)
    took = cost(lambda: download.fetch_all(remotes(url, files, ours), Options()))
    shutil.rmtree(ours)
    return compared("verified download : the hf client (unverified)", took, hf, 1.0)


def median_of(turns: int, measure: Callable[[], list[Measured]]) -> list[Measured]:
    """Each comparison by the median of its sides over several turns, ours and theirs taking turns."""
    runs = [measure() for _ in range(turns)]
    return [
        replace(
            each[0],
            ours=statistics.median(one.ours for one in each),
            other=statistics.median(one.other for one in each),
        )
        for each in zip(*runs, strict=True)
    ]


def after_a_cut(
    url: str, sent: Callable[[], int], files: list[tuple[str, Path, str]], folder: Path
) -> list[Measured]:
    """SIGKILL at 90 % of one file, then a second run: bytes that the server sent again."""
    (one,) = remotes(url, files[:1], folder / "cut")
    body = (
        "import sys, web; from pathlib import Path; from presets import download; "
        "from presets.download_door import Door; u, t, n, s = sys.argv[1:]; "
        "home = Door(endpoint='', made=lambda: web.session(local=True)); "
        "download.fetch_all([download.Remote(url=u, target=Path(t), size=int(n), sha256=s, door=home)], "
        "download.Options(rate=200_000_000))"
    )
    words = [sys.executable, "-c", body, one.url, str(one.target), str(one.size), one.sha256]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    state = one.target.with_name(f".{one.name}.part.json")
    while (done := _done(state)) < 0.9 * one.size:
        if process.poll() is not None:
            raise RuntimeError("the client ended before it was killed")
        time.sleep(0.002)
    process.kill()
    process.wait()
    done = _done(state)
    before = sent()
    download.fetch_all([one], Options())
    again = sent() - before
    return [
        Measured(
            what="bytes sent after a kill at 90 % : bytes missing",
            ours=again,
            other=one.size - done,
            goal=1.01,
        )
    ]


def _done(state: Path) -> int:
    try:
        return sum(span["done"] for span in json.loads(state.read_text())["spans"])
    except (OSError, ValueError):
        return 0


def header_only(folder: Path) -> list[Measured]:
    """From nothing to a plan of a 104 GB model in four shards."""
    made = replace(shapes.MODELS["qwen4exp"](), listed=True)
    shards = hollow.write_split(made, folder, "Big", SHARDS)
    files = [(path.name, path, path.name.ljust(64, "0")) for path in shards]
    os.environ["HALOFORGE_HOME"] = str(folder / "home")
    with hub_process(files) as (url, sent):
        home = Door(endpoint=url, made=lambda: web.session(local=True))
        reference = f"{REPO}@{REVISION}:{shards[0].name}"

        def plan() -> None:
            laid = models_header.fetch(reference, door=home)
            found, _ = ask.answer(ask.Request(gguf=str(laid), free_gib=110.0))
            print(
                f"plan of {sum(p.stat().st_size for p in shards) / 1e9:.1f} GB: {found.verdict}",
                file=sys.stderr,
            )

        took = cost(plan).wall
        moved = sent()
    return [
        Measured(what="headers of 104 GB and their plan, s : 2 s", ours=took, other=2.0, goal=1.0),
        Measured(what="bytes moved for it : 50 MB", ours=float(moved), other=50e6, goal=1.0),
    ]


def main() -> int:
    """Measure, print, and return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--hf-python", default="")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        for each in comparisons(Path(name), given):
            found.append(each)
            if not given.json:
                print(each.line(), flush=True)
    if given.json:
        print(json.dumps([{**asdict(each), "ratio": each.ratio} for each in found], indent=2))
    return 0 if all(each.ratio <= each.goal for each in found) else 1


def comparisons(folder: Path, given: argparse.Namespace) -> Iterator[Measured]:
    """Every comparison as soon as it is measured."""
    files = random_files(folder, int(given.gib * 2**30))
    with hub_process(files) as (url, sent):
        yield from median_of(given.turns, lambda: against_curl(url, files, folder))
        if given.hf_python:
            yield from median_of(given.turns, lambda: against_hf(url, files, folder, given.hf_python))
        else:
            print("the hf client is left out: --hf-python is not given", file=sys.stderr)
        yield from after_a_cut(url, sent, files, folder)
    yield from header_only(folder)


if __name__ == "__main__":
    sys.exit(main())
