"""The planner against what llama-server b11434 itself projected for 400 configurations of hollow models.

`tests/data/engine.json` is written by `python -m tests.makers.record`; the engine prints 0.01 MiB.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from presets.planner import CPU, GFX1151, Device, Options, caches, compute, shape, weights
from presets.planner.compute import Buffer
from tests.makers import record
from tests.makers.record import Point
from tests.unit.planner_headers import B11434, architecture, header

DATA = Path(__file__).resolve().parents[1] / "data" / "engine.json"
DATA_GPU = DATA.with_name("engine_gpu.json")
"""The same configurations with all layers on tests/makers/stub/device.cpp, which sizes as HIP does."""
LAST_DIGIT = 0.0051
"""Half of the last digit that the engine prints, MiB."""


@cache
def points(data: Path = DATA) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(data.read_text())["points"]
    return found


def point_of(entry: dict[str, Any]) -> Point:
    """The configuration of an entry; what was left out is None, also where the default is not."""
    return Point(**{"slots": None, **entry["point"]})


def options(point: Point) -> Options:
    return Options(
        ctx=point.ctx,
        batch=point.batch,
        ubatch=point.ubatch,
        slots=point.slots,
        kv_unified=point.unified,
        cache_type_k=point.k,  # type: ignore[arg-type]
        cache_type_v=point.v,  # type: ignore[arg-type]
        draft_cache_type_k=point.draft_k,  # type: ignore[arg-type]
        draft_cache_type_v=point.draft_k,  # type: ignore[arg-type]
        spec_types=(point.spec,) if point.spec else (),
        draft_n_max=point.n_max,
        swa_full=point.swa_full,
        flash_attn=point.flash or "auto",  # type: ignore[arg-type]
        load_mode="none",
        lazy_mode="off",
    )


def compare(entry: dict[str, Any]) -> list[str]:
    """Every exact term that differs, as text."""
    point = point_of(entry)
    arch, given = architecture(point.model), options(point)
    sizes = shape(given, B11434, trained=arch.trained, rollback=arch.name in B11434.rollback_architectures)
    wrong = differences("target", caches.target(arch, sizes, given, B11434), entry["contexts"][0])
    output = compute.output_at_start(arch, sizes) / 2**20
    if abs(output - entry["contexts"][0]["output"]) > LAST_DIGIT:
        wrong.append(f"output {output:.3f}, engine {entry['contexts'][0]['output']}")
    if len(entry["contexts"]) > 1:
        head = architecture(point.draft) if point.draft else arch
        own = caches.draft(head, sizes, given, B11434, mtp=point.spec == "draft-mtp")
        wrong += differences("draft", own, entry["contexts"][1])
    return [f"{point}: {text}" for text in wrong]


def differences(which: str, own: caches.Caches, told: dict[str, Any]) -> list[str]:
    ours = {"kv_cache": own.kv, "kv_cache_swa": own.swa, "indexer_cache": own.indexer, "state": own.state}
    wrong = [
        f"{which} {name} {size / 2**20:.3f}, engine {told.get(name, 0.0)}"
        for name, size in ours.items()
        if abs(size / 2**20 - told.get(name, 0.0)) > LAST_DIGIT
    ]
    cells = {"kv_cache": own.cells if own.kv else None, "kv_cache_swa": own.swa_cells or None}
    for name, count in cells.items():
        if count is not None and told["cells"].get(name) != count:
            wrong.append(f"{which} {name} has {count} cells, engine {told['cells'].get(name)}")
    return wrong


def test_the_data_cover_the_grid_that_the_makers_declare() -> None:
    kept = [point_of(entry) for entry in points()]
    assert kept == list(record.grid()) == [point_of(entry) for entry in points(DATA_GPU)]
    assert len(kept) >= 300
    assert len({architecture(point.model).name for point in kept}) >= 10
    assert [json.loads(data.read_text())["pin"] for data in (DATA, DATA_GPU)] == ["b11434"] * 2


@pytest.mark.parametrize("data", [DATA, DATA_GPU], ids=["cpu", "gpu"])
def test_caches_states_and_outputs_are_exact(data: Path) -> None:
    wrong = [text for entry in points(data) for text in compare(entry)]
    assert wrong == []


def test_weights_are_exact() -> None:
    """The engine prints whole MiB, cut off; a fitting pass loads nothing by mmap and nothing lazily."""
    wrong = []
    for entry in points():
        point = point_of(entry)
        given, arch = options(point), architecture(point.model)
        mtp = point.spec == "draft-mtp"
        placed = weights.place(header(point.model), arch, given, B11434, CPU, mtp=mtp and not point.draft)
        mine = (placed.host + placed.table + placed.device) // 2**20
        if mine != entry["contexts"][0]["model"]:
            wrong.append(f"{point.model} {point.spec}: {mine}, engine {entry['contexts'][0]['model']}")
        if point.draft:
            own = architecture(point.draft)
            placed = weights.place(header(point.draft), own, given, B11434, CPU, mtp=True)
            if placed.host // 2**20 != entry["contexts"][1]["model"]:
                wrong.append(f"{point.draft}: {placed.host // 2**20}, {entry['contexts'][1]['model']}")
    assert wrong == []


def computed(entry: dict[str, Any], device: Device) -> list[tuple[Point, Buffer, dict[str, Any]]]:
    """Our compute buffer and what the engine told, for target and draft."""
    point = point_of(entry)
    arch, given = architecture(point.model), options(point)
    sizes = shape(given, B11434, trained=arch.trained, rollback=arch.name in B11434.rollback_architectures)
    found = [(point, compute.buffer(arch, sizes, given, B11434, device), entry["contexts"][0])]
    if len(entry["contexts"]) > 1:
        head = architecture(point.draft) if point.draft else arch
        own = replace(given, cache_type_k=given.draft_cache_type_k, cache_type_v=given.draft_cache_type_v)
        smaller = replace(sizes, outputs=sizes.slots, rollback=0)
        size = compute.mtp_buffer if point.spec == "draft-mtp" else compute.buffer
        found.append((point, size(head, smaller, own, B11434, device), entry["contexts"][1]))
    return found


def parts(mine: Buffer, told: dict[str, Any]) -> list[tuple[float, float]]:
    """Ours and the engine's in MiB: on the device where there is one, and on the host."""
    on_device = told.get("on_device", 0.0)
    found = [(mine.device / 2**20, on_device), (mine.host / 2**20, told["compute"] - on_device)]
    return [(size, other) for size, other in found if other]


@pytest.mark.parametrize(("data", "device"), [(DATA, CPU), (DATA_GPU, GFX1151)], ids=["cpu", "gpu"])
def test_measured_compute_is_within_five_percent_and_never_far_below(data: Path, device: Device) -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for entry in points(data):
        for point, buffer, told in computed(entry, device):
            counts[buffer.certainty] += 1
            for mine, other in parts(buffer, told):
                text = f"{point}: {mine:.2f} MiB, engine {other:.2f}"
                error = mine - other
                if error < -max(0.01 * other, 0.05):
                    wrong.append(f"below: {text}")
                if buffer.certainty == "measured" and error > max(0.05 * other, 0.5):
                    wrong.append(f"above: {text}")
                if error > 0.35 * other:
                    wrong.append(f"useless bound: {text}")
    assert wrong == []
    assert counts["measured"] > 2 * counts["bounded"]


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_a_formula_that_is_off_would_be_seen(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """The comparison is fine enough to notice two percent in a cache."""
    true = caches.cell_bytes
    monkeypatch.setattr(caches, "cell_bytes", lambda layers, types: int(true(layers, types) * factor))
    assert len([entry for entry in points() if compare(entry)]) == len(points())
