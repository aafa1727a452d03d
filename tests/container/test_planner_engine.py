"""The recorded projections against the engine in today's image: a dozen points, measured again.

A patch of ours, a new pin or another recipe that changes what the engine allocates shows here first.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from compose import projection as asking
from compose.render import Weights
from images.records import ImageRecord
from presets import gguf
from presets.planner import CPU
from presets.planner.projection import SOURCE
from tests.makers import hollow, record, shapes
from tests.makers.record import Point
from tests.unit.planner_headers import planned
from tests.unit.test_planner_engine import point_of, points

SAMPLE = {
    ("qwen3-8b", None): (1, 7), ("qwen35-27b", None): (2,), ("gpt-oss-120b", None): (8,),
    ("gemma4-12b", None): (3,), ("deepseek2-lite", None): (0,), ("granite-h-micro", None): (2,),
    ("qwen4exp", None): (1, 3), ("qwen4exp", "draft-mtp"): (0, 2), ("qwen35-27b-mtp", "draft-mtp"): (1,),
}  # fmt: skip


def sample() -> list[dict[str, Any]]:
    chosen = []
    for (model, spec), numbers in SAMPLE.items():
        own = [e for e in points() if e["point"]["model"] == model and e["point"].get("spec") == spec]
        chosen += [own[number] for number in numbers]
    return chosen


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hollow files of every model in the sample."""
    place = tmp_path_factory.mktemp("hollow")
    names = {
        name for entry in sample() for name in (entry["point"]["model"], entry["point"].get("draft")) if name
    }
    for name in names:
        hollow.write(shapes.MODELS[name](), place / f"{name}.gguf")
    return place


@pytest.mark.parametrize("entry", sample(), ids=lambda entry: json.dumps(entry["point"], sort_keys=True)[:90])
def test_the_engine_of_the_image_says_what_was_recorded(
    entry: dict[str, Any], folder: Path, cpu_image: ImageRecord
) -> None:
    point = point_of(entry)
    name = f"haloforge-record-{os.getpid()}"
    argv = [
        "docker",
        "run",
        "--rm",
        "--name",
        name,
        "--network",
        "none",
        "--user",
        f"{os.getuid()}:{os.getgid()}",
    ]
    argv += ["--volume", f"{folder}:{folder}:ro", cpu_image.id]
    told = record.ask(argv, point, folder, name=name)
    assert told["contexts"] == entry["contexts"]


def weights_of(folder: Path, point: Point) -> Weights:
    names = [point.model, *([point.draft] if point.draft else [])]
    return Weights(
        model=f"{point.model}.gguf", draft=f"{point.draft}.gguf" if point.draft else None, bytes=0,
        mounts=tuple((folder / f"{name}.gguf", f"{name}.gguf") for name in names),
    )  # fmt: skip


def test_a_projection_is_asked_once_and_agrees_with_the_plan(
    folder: Path, cpu_image: ImageRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALOFORGE_HOME", str(tmp_path))
    point = point_of(sample()[-3])
    assert point.draft
    arguments = point.arguments(Path("/model"))
    arguments += ["-t", "1", "--no-repack"]
    headers = [gguf.read(folder / f"{name}.gguf") for name in (point.model, point.draft)]
    first, second = (
        asking.project(cpu_image, arguments, weights_of(folder, point), headers, CPU) for _ in range(2)
    )
    assert (first.kept, second.kept) == (False, True)
    assert first.terms == second.terms
    assert {term.formula for term in first.terms} == {SOURCE}
    ours = planned(
        point.model, draft=point.draft, device=CPU, ctx=point.ctx, ubatch=point.ubatch, slots=1,
        cache_type_k=point.k, cache_type_v=point.v, spec_types=("draft-mtp",), draft_n_max=point.n_max,
    )  # fmt: skip
    told = {term.name: term.bytes for term in first.terms}
    for name in ("kv_cache", "indexer_cache", "recurrent_state", "draft_kv_cache"):
        assert told[name] == pytest.approx(ours.bytes_of(name), abs=0.0051 * 2**20), name
    assert told["compute_host"] == pytest.approx(ours.bytes_of("compute_host"), rel=0.05)


def test_an_engine_that_refuses_is_quoted(
    folder: Path, cpu_image: ImageRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from errors import BadInput

    monkeypatch.setenv("HALOFORGE_HOME", str(tmp_path))
    point = Point(model="deepseek2-lite", k="q8_0", v="f16")
    header = gguf.read(folder / "deepseek2-lite.gguf")
    with pytest.raises(BadInput) as raised:
        asking.project(cpu_image, point.arguments(Path("/model")), weights_of(folder, point), [header], CPU)
    assert "different K (q8_0) and V (f16) cache types" in raised.value.why
