"""Asks an engine what it reserves for many models and settings, and keeps the answers as test data.

    python -m tests.makers.record --server PATH/llama-server --pin b11434 [--stub STUB.so]

With a stub device (tests/makers/stub/device.cpp) the sizes are those of a GPU. Hollow files stand for the
models; each start ends as soon as the fitting pass has printed its sizes, long before weights would be read.
About 0.3 s a point.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import command
from presets.planner import log
from tests.makers import hollow, shapes

DATA: Final = Path(__file__).resolve().parents[1] / "data" / "engine.json"
DATA_GPU: Final = DATA.with_name("engine_gpu.json")
ENOUGH: Final = "fitting params to free memory took"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One configuration; None leaves an option out."""

    model: str
    draft: str | None = None
    ctx: int = 4096
    batch: int = 2048
    ubatch: int = 512
    slots: int | None = 1
    unified: bool | None = None
    k: str = "f16"
    v: str = "f16"
    draft_k: str = "f16"
    spec: str | None = None
    n_max: int = 3
    swa_full: bool = False
    flash: str | None = None

    def arguments(self, folder: Path) -> list[str]:
        """The server's arguments."""
        words = ["-m", str(folder / f"{self.model}.gguf"), "-c", str(self.ctx), "-b", str(self.batch)]
        words += ["-ub", str(self.ubatch), "-ctk", self.k, "-ctv", self.v]
        words += ["-np", str(self.slots)] if self.slots else []
        words += [] if self.unified is None else ["-kvu" if self.unified else "-no-kvu"]
        words += ["-md", str(folder / f"{self.draft}.gguf")] if self.draft else []
        if self.spec:
            words += ["--spec-type", self.spec, "--spec-draft-n-max", str(self.n_max)]
            words += ["-ctkd", self.draft_k, "-ctvd", self.draft_k]
        words += ["-fa", self.flash] if self.flash else []
        return [*words, *(["--swa-full"] if self.swa_full else [])]


SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {"ctx": 4096},
    {"ctx": 32768, "k": "q8_0", "v": "q8_0"},
    {"ctx": 32768, "slots": 4, "unified": False, "k": "q8_0", "v": "q8_0"},
    {"ctx": 32768, "slots": 4, "unified": True, "k": "q8_0", "v": "q8_0"},
    {"ctx": 131072, "ubatch": 2048},
    {"ctx": 131072, "ubatch": 2048, "slots": 8, "unified": False, "k": "q8_0", "v": "q8_0"},
    {"ctx": 131072, "ubatch": 1024, "slots": 8, "unified": True, "k": "q8_0", "v": "q8_0"},
    {"ctx": 10000, "slots": 3, "unified": False},
    {"ctx": 65535, "slots": None},
    {"ctx": 8192, "batch": 64, "k": "q4_0", "v": "q4_0"},
    {"ctx": 8192, "ubatch": 64, "slots": 2, "unified": False, "k": "q8_0", "v": "q5_1"},
    {"ctx": 16384, "ubatch": 128, "slots": 2, "unified": True, "k": "q5_0", "v": "q4_0"},
    {"ctx": 262144, "ubatch": 2048, "k": "q8_0", "v": "q8_0"},
    {"ctx": 1024, "ubatch": 2048, "k": "bf16", "v": "bf16"},
    {"ctx": 49152, "batch": 4096, "ubatch": 256, "slots": 5, "unified": False},
    {"ctx": 20480, "batch": 512, "slots": 6, "unified": True, "k": "q4_1", "v": "q4_1"},
    {"ctx": 32768, "ubatch": 1024},
    {"ctx": 16384, "ubatch": 32},
)
HEADS: Final = (
    ("qwen4exp", "qwen4exp-head", "draft-mtp"),
    ("qwen4exp-mtp", None, "draft-mtp"),
    ("qwen35-27b-mtp", None, "draft-mtp"),
    ("qwen35moe-35b-mtp", None, "draft-mtp"),
    ("glm45-air", None, "draft-mtp"),
    ("qwen3-8b", "qwen3-0.6b", "draft-simple"),
)
DRAFTS: Final[tuple[dict[str, Any], ...]] = (
    {"ctx": 32768, "k": "q8_0", "v": "q8_0"},
    {"ctx": 8192, "ubatch": 2048, "n_max": 2},
    {"ctx": 32768, "ubatch": 2048, "n_max": 2},
    {"ctx": 32768, "slots": 4, "unified": False, "k": "q8_0", "v": "q8_0"},
    {"ctx": 65536, "slots": 4, "unified": True, "k": "q8_0", "v": "q8_0", "n_max": 1},
    {"ctx": 131072, "ubatch": 2048, "k": "q8_0", "v": "q8_0", "draft_k": "q8_0", "n_max": 4},
)
UNRECORDED: Final = ("qwen4exp-head", "qwen35moe-35b-array")
"""A head is no target; b11434 refuses a qwen35moe with an array of KV heads (it takes the first layer's)."""
LATENT: Final = ("deepseek2-lite",)
"""The engine refuses different K and V types where V is a part of K."""
PLAIN: Final[tuple[dict[str, Any], ...]] = (
    {"ctx": 4096},
    {"ctx": 16384},
    {"ctx": 16384, "slots": 4, "unified": False},
    {"ctx": 16384, "ubatch": 128},
)
"""Without flash attention."""
WINDOWED: Final = ("gpt-oss-120b", "gemma3-270m", "gemma4-12b")


def grid() -> Iterator[Point]:
    """Every configuration that is recorded."""
    for model in shapes.MODELS:
        if model not in UNRECORDED:
            for setting in SETTINGS:
                same = {"v": setting["k"]} if model in LATENT and "k" in setting else {}
                yield Point(model=model, **setting | same)
    for (model, draft, spec), setting in itertools.product(HEADS, DRAFTS):
        yield Point(model=model, draft=draft, spec=spec, **setting)
    for model in WINDOWED:
        yield Point(model=model, ctx=16384, slots=2, unified=False, swa_full=True)
    for model in ("qwen3-8b", "qwen3-30b-a3b", "qwen35-27b", "gpt-oss-120b", "gemma4-12b", "glm45-air",
                  "deepseek2-lite", "lfm2-1.2b", "qwen4exp"):  # fmt: skip
        yield from (Point(model=model, flash="off", **setting) for setting in PLAIN)


class _Enough(Exception):
    """The lines that are wanted have come."""


def ask(argv: Sequence[str], point: Point, folder: Path, *, name: str = "") -> dict[str, Any]:
    """Start the engine for one point and read its projection.

    Args:
        argv: what starts llama-server: its path, or a `docker run` of its image.
        name: of the container that `argv` starts, which outlives its client; "" for none.

    Raises:
        SystemExit: it ended without one; shows its last lines.
    """
    lines: list[str] = []

    def take(line: str) -> None:
        lines.append(line)
        if ENOUGH in line:
            raise _Enough

    words = [*argv, "-t", "1", "--no-repack", "-lm", "auto", "--host", "127.0.0.1", "--port", _free_port()]
    try:
        command.stream([*words, "--log-jsonl", "-lv", "5", *point.arguments(folder)], take)
    except _Enough:
        if any("fit_memory_breakdown" in line for line in lines):
            return answer(log.parse("\n".join(lines)))
    finally:
        if name:
            command.run(["docker", "rm", "--force", name], check=False)
    tail = "\n".join(line for line in lines[-40:] if '"error"' in line)
    raise SystemExit(f"no projection for {point}:\n{tail}")


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def answer(logged: log.Logged) -> dict[str, Any]:
    """The sizes of a projection, MiB: for each context (target, draft) its caches, state and compute."""
    contexts = [context for load in logged.projections for context in load.contexts]
    if not logged.breakdowns or len(contexts) != len(logged.breakdowns):
        raise SystemExit(f"{len(contexts)} contexts, {len(logged.breakdowns)} breakdowns")
    return {
        "contexts": [
            {**context.sized, "state": context.state_mib() or 0.0,
             "compute": round(sum(context.compute.values()), 2), **on_device(context.compute),
             "output": sum(context.output.values()), "cells": dict(context.cells),
             "model": sum(row.model for row in rows)}
            for context, rows in zip(contexts, logged.breakdowns, strict=True)
        ]
    }  # fmt: skip


def on_device(buffers: Mapping[str, float]) -> dict[str, float]:
    """The part of the buffers that is not the host's, if there is one."""
    found = {name: size for name, size in buffers.items() if name != "CPU" and "Host" not in name}
    return {"on_device": sum(found.values())} if found else {}


def kept(data: Path, pin: str) -> dict[Point, dict[str, Any]]:
    """What is recorded of this pin already; remove the file to ask for everything anew."""
    if not data.exists():
        return {}
    found = json.loads(data.read_text(encoding="utf-8"))
    if found["pin"] != pin:
        return {}
    return {
        Point(**{"slots": None, **entry["point"]}): {"contexts": entry["contexts"]}
        for entry in found["points"]
    }


def main() -> None:
    """Record the points of the grid that are not recorded yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path)
    parser.add_argument("--pin", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--stub", type=Path, help="a stub device to size for")
    given = parser.parse_args()
    out = DATA_GPU if given.stub else DATA
    words = ["env", f"LD_PRELOAD={given.stub.absolute()}"] if given.stub else []
    if given.server:
        os.environ["LD_LIBRARY_PATH"] = str(given.server.parent.absolute())
        words.append(str(given.server.absolute()))
    points = [point for point in grid() if given.only in point.model]
    with tempfile.TemporaryDirectory(prefix="hollow-") as place:
        folder = Path(place)
        for name, make in shapes.MODELS.items():
            hollow.write(make(), folder / f"{name}.gguf")
        recorded = []
        known = kept(out, given.pin)
        for number, point in enumerate(points, 1):
            told = known.get(point) or ask(words, point, folder)
            recorded.append({"point": {k: v for k, v in asdict(point).items() if v is not None}, **told})
            print(f"{number}/{len(points)} {point.model}", flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in recorded)
    out.write_text(f'{{"pin": {json.dumps(given.pin)}, "points": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
