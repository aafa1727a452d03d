"""How fast a plan is, beside the engine's own `llama-fit-params` on the same hollow files, in one run.

    python -m bench.plan_speed --programs FOLDER     (with llama-fit-params in it)
    python -m bench.plan_speed --image REF

Makes a hollow 104 GB model in four shards with a vocabulary of true length. Prints medians and their ratio;
wall times of a busy machine mean little, their ratio in one run does.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from paths import ROOT

ROUNDS: Final = 7
GOAL_RATIO: Final = 4.0


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What one run of a program took: seconds of wall and of CPU, and its peak of resident memory."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def run(argv: Sequence[str], env: dict[str, str]) -> Taken:
    """Run a program to its end, whatever it returns."""
    began = time.monotonic()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
    return Taken(
        wall_s=time.monotonic() - began, cpu_s=used.ru_utime + used.ru_stime, peak_bytes=used.ru_maxrss * 1024
    )


def median(runs: Sequence[Taken]) -> Taken:
    """The median of each figure; the peak is the largest."""
    return Taken(
        wall_s=statistics.median(run.wall_s for run in runs),
        cpu_s=statistics.median(run.cpu_s for run in runs),
        peak_bytes=max(run.peak_bytes for run in runs),
    )


def lay(folder: Path) -> None:
    """Lay the hollow model."""
    from tests.makers import hollow, shapes

    whole = replace(shapes.Qwen4Exp().trunk(), listed=True)
    hollow.write_split(whole, folder, "hollow", 4)


def model(folder: Path) -> Path:
    """The first shard, made in a process of its own: what a child takes shows in its parent's peak."""
    words = [sys.executable, "-c", "import sys; from pathlib import Path; from bench import plan_speed"]
    words[-1] += "; plan_speed.lay(Path(sys.argv[1]))"
    subprocess.run([*words, str(folder)], check=True, cwd=ROOT)
    return sorted(folder.glob("*.gguf"))[0]


def plan_words(first: Path) -> list[str]:
    """The command that plans it, in a process of its own."""
    words = [sys.executable, "-P", "-m", "invoke", "--search-root", str(ROOT), "plan", "--gguf", str(first)]
    return [*words, "--set", "ctx=32768", "--set", "slots=1", "--free", "106.5", "--json"]


def engine_words(first: Path, programs: Path | None, image: str) -> list[str]:
    """The engine's own tool on the same files and settings."""
    options = ["-m", str(first), "-c", "32768", "-ub", "512", "-fitp", "on", "--no-repack"]
    if programs is not None:
        return [str(programs / "llama-fit-params"), *options]
    mount = ["--volume", f"{first.parent}:{first.parent}:ro", "--entrypoint", "/app/llama-fit-params"]
    return ["docker", "run", "--rm", "--network", "none", *mount, image, *options]


def main() -> None:
    """Race the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=Path)
    parser.add_argument("--image", default="")
    given = parser.parse_args()
    if not given.programs and not given.image:
        parser.error("give --programs or --image")
    env = dict(os.environ)
    if given.programs:
        env["LD_LIBRARY_PATH"] = str(given.programs.absolute())
    with tempfile.TemporaryDirectory(prefix="hollow-") as place:
        first = model(Path(place))
        Path(place).chmod(0o755)
        env |= {"PYTHONPYCACHEPREFIX": f"{place}/bytecode"}  # as after any first run
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        run(plan_words(first), env)
        ours, theirs, start = [], [], []
        for _ in range(ROUNDS):
            ours.append(run(plan_words(first), env))
            theirs.append(run(engine_words(first, given.programs, given.image), env))
            if given.image:
                start.append(run(["docker", "run", "--rm", given.image, "--version"], env))
    mine, other = median(ours), median(theirs)
    begin = median(start).wall_s if start else 0.0
    ratio = (other.wall_s - begin) / mine.wall_s
    print(f"plan               {mine.wall_s:.2f} s wall, {mine.cpu_s:.2f} s CPU, {mine.peak_bytes >> 20} MiB")
    print(
        f"llama-fit-params   {other.wall_s - begin:.2f} s wall"
        + (" (container start taken off)" if begin else "")
    )
    print(f"ratio              {ratio:.1f} (goal: at least {GOAL_RATIO:.0f})")


if __name__ == "__main__":
    main()
