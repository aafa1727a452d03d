"""Limits, sweeps, comparison with logs, the error table, and where headers come from."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from errors import BadInput, HostLacks
from patches import engines, traits
from presets import schema
from presets.planner import (
    CPU,
    GFX1151,
    Budget,
    Options,
    Question,
    ask,
    calibrate,
    compare,
    headers,
    limits,
    log,
    projection,
    sweep,
)
from presets.planner.terms import GIB, MIB
from tests.makers import hollow, shapes
from tests.unit.planner_headers import B11434, BOX, header, planned
from tests.unit.test_planner_log import FITTING, REAL

BIG = Budget(available_bytes=int(106.5 * GIB), reserve_bytes=6 * GIB)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALOFORGE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HALOFORGE_MODELS", raising=False)


# --- limits ---
def test_limits_say_why_each_cell_differs_from_the_published_one() -> None:
    found = limits.cells(B11434, GFX1151, BIG)
    assert len(found) == 5 * 5 * 2
    for cell in found:
        assert bool(cell.why) is (cell.slots != cell.published), cell
        assert cell.slots == limits.CAP or cell.headroom_bytes < 20 * GIB
    assert {cell.why.split(" ")[0] for cell in found if cell.why} <= {
        "state",
        "compute",
        "draft",
        "weights",
        "server",
        "KV",
    }


def test_one_more_slot_would_not_fit() -> None:
    asked = limits.question("UD-IQ4_XS", 65536, True, B11434, GFX1151, BIG)
    slots, plan = limits.most_slots(asked)
    assert plan.headroom_bytes >= 0
    assert limits.with_slots(asked, slots + 1).headroom_bytes < 0
    assert limits.most_slots(replace(asked, budget=Budget(available_bytes=GIB)))[0] == 0


def test_the_older_estimate_is_the_one_that_was_published() -> None:
    """Its formulas reproduce its own cells, so what we say it had wrong is what it had."""
    told = calibrate.published()["limits"]["cells"]
    for quant in ("UD-IQ1_M", "UD-IQ3_XXS", "UD-IQ4_XS", "UD-Q4_K_XL"):
        for column, context in enumerate(limits.SIZES):
            for which, mtp in enumerate((True, False)):
                asked = limits.question(quant, context, mtp, B11434, GFX1151, BIG)
                slots = told[quant][column][which]
                room = BIG.budget_bytes - sum(limits.older(asked, slots).values())
                over = BIG.budget_bytes - sum(limits.older(asked, slots + 1).values())
                assert room >= -GIB, (quant, context, mtp, slots)
                assert over < GIB or slots == limits.CAP, (quant, context, mtp, slots)


def test_limits_as_text_and_csv() -> None:
    found = limits.cells(B11434, GFX1151, BIG, quants=("UD-Q4_K_XL",))
    text = limits.text(found)
    assert "UD-Q4_K_XL" in text
    assert "(24/37)" in text
    assert "kept 1 + n_max times" in text
    rows = list(csv.DictReader(StringIO(limits.csv(found))))
    assert [int(row["slots"]) for row in rows] == [cell.slots for cell in found]


# --- sweep ---
def asked(**options: Any) -> Question:
    return Question(
        header=header("qwen4exp"), draft=None, options=Options(**options), traits=B11434, device=GFX1151,
        budget=BOX, preset="q",
    )  # fmt: skip


@pytest.mark.parametrize("key", sweep.RANGES)
def test_a_sweep_holds_the_own_value_and_adds_up(key: str) -> None:
    base = asked(ctx=40960, slots=3, ubatch=300, cache_type_k="q8_0", cache_type_v="q8_0", lazy_mode="on")
    points = sweep.over(base, key)
    values = [point.value for point in points]
    assert sweep.current(base.options, key) in values
    assert len(values) == len(set(values)) >= 5
    for point in points:
        assert sum(point.groups().values()) == point.plan.total_bytes
        assert point.to_json()["total_bytes"] == point.plan.total_bytes
    assert sweep.text(points, key).count("\n") == len(points)


def test_a_sweep_over_nothing_known_is_refused() -> None:
    with pytest.raises(BadInput, match="'ubb'"):
        sweep.over(asked(ctx=4096), "ubb")


def test_drawing_needs_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(HostLacks, match="matplotlib"):
        sweep.plot(sweep.over(asked(ctx=4096), "np"), "np", tmp_path / "a.svg", "t")


# --- compare ---
def test_a_log_is_held_against_the_plan() -> None:
    plan = planned("qwen35-27b", ctx=65536, slots=1, cache_type_k="q8_0", cache_type_v="q8_0")
    found = {line.name: line for line in compare.lines(plan, log.parse(FITTING + REAL))}
    assert found["KV caches"].holds is True
    assert found["recurrent state"].holds is True
    assert found["weights on the device"].holds is False, "another quant than the hollow one"
    other = planned("qwen35-27b", ctx=32768, slots=1, cache_type_k="q8_0", cache_type_v="q8_0")
    lines = compare.lines(other, log.parse(REAL))
    assert next(line for line in lines if line.name == "KV caches").holds is False
    assert "BROKEN" in compare.text(lines, log.parse(REAL))


def test_a_quiet_log_is_not_measured() -> None:
    quiet = log.parse("main: model loaded\n")
    lines = compare.lines(planned("qwen35-27b", ctx=4096, slots=1), quiet)
    assert {line.holds for line in lines} == {None}
    assert all(line.to_json()["logged_mib"] is None for line in lines)
    text = compare.text(lines, quiet)
    assert "not measured: the log has no buffer lines; start the server with -lv 4" in text


def test_a_failed_allocation_comes_first() -> None:
    text = REAL + "alloc_tensor_range: failed to allocate ROCm0 buffer of size 2147483648\n"
    logged = log.parse(text)
    assert compare.text([], logged).startswith("out of device memory: 2048 MiB on ROCm0")


@pytest.mark.parametrize(
    ("certainty", "planned_mib", "logged", "holds"),
    [
        ("exact", 100.0, 100.004, True), ("exact", 100.0, 100.1, False), ("exact", 100.0, 99.9, False),
        ("bounded", 100.0, 20.0, True), ("bounded", 100.0, 100.1, False), ("measured", 100.0, 109.0, True),
        ("measured", 100.0, 112.0, False), ("measured", 100.0, 88.0, False), ("exact", 100.0, None, None),
    ],
)  # fmt: skip
def test_promises_by_certainty(
    certainty: Any, planned_mib: float, logged: float | None, holds: bool | None
) -> None:
    line = compare.Line(name="x", planned=planned_mib, logged=logged, certainty=certainty)
    assert line.holds is holds


# --- the engine's projection ---
def test_a_projection_becomes_terms() -> None:
    draft = """\
0.00.1 I llama_model_loader: loaded meta data with 32 key-value pairs and 34 tensors from h.gguf (version GGUF V3 (latest))
0.00.1 I load_tensors:      ROCm0 model buffer size =     0.00 MiB
0.00.2 I llama_context: n_seq_max             = 1
0.00.3 I llama_kv_cache:      ROCm0 KV buffer size =     0.00 MiB
0.00.3 I llama_kv_cache: size =   64.00 MiB ( 32768 cells,   1 layers,  1/1 seqs), K (f16):   32.00 MiB, V (f16):   32.00 MiB
0.00.3 I operator(): creating indexer KV cache, size = 32768 cells
0.00.3 I llama_kv_cache: size =   16.00 MiB ( 32768 cells,   1 layers,  1/1 seqs), K (f16):   16.00 MiB, V (f16):    0.00 MiB
0.00.4 I sched_reserve:      ROCm0 compute buffer size =   178.05 MiB
0.00.4 I sched_reserve:  ROCm_Host compute buffer size =    42.00 MiB
"""  # noqa: E501
    sizes = {"kind": "device", "name": "ROCm0", "model": 1, "context": 2, "compute": 3}
    row = json.dumps({"type": "fit_memory_breakdown", "data": {"rows": [sizes]}})
    found = projection.terms(log.parse(f"{FITTING}{row}\n{draft}{row}\n"), GFX1151)
    told = {(term.name, term.where): round(term.bytes / MIB, 2) for term in found}
    assert told == {
        ("kv_cache", "device"): 2176.0, ("recurrent_state", "device"): 149.62,
        ("compute_device", "device"): 400.28, ("draft_kv_cache", "device"): 80.0,
        ("draft_compute", "device"): 178.05, ("draft_compute", "host"): 42.0,
    }  # fmt: skip
    assert {term.certainty for term in found} == {"measured"}
    assert projection.terms(log.parse("nothing"), CPU) == []


# --- the error table ---
def test_the_error_table_is_up_to_date_and_good() -> None:
    rows = calibrate.rows()
    assert len(rows) >= 15
    device = [row for row in rows if row.counts == "device"]
    assert all(abs(row.error) <= calibrate.GOAL for row in device), calibrate.table(device)
    assert all(abs(row.error) <= 0.05 for row in rows), calibrate.table(rows)
    for row in rows:
        assert abs(row.error) <= calibrate.GOAL or row.note, f"{row.id} is off and nobody says why"
    written = Path(calibrate.__file__).parents[2] / "docs" / "planner-error.md"
    assert written.read_text() == calibrate.document(rows), "run ./inv plan.errors --write"


# --- traits ---
@pytest.mark.parametrize("name", engines.names())
def test_both_ways_to_read_traits_agree(name: str) -> None:
    assert traits.load(name) == engines.load(name).traits


def test_bad_traits_are_named() -> None:
    for block, message in (
        ({"indexer_q_heads": 1}, "indexer_q_heads"),
        ({"guessed": ["nothing"]}, "names no trait: nothing"),
        ({"compute": {"qwen4exp": {"base_mib": 1}}}, "missing"),
    ):
        with pytest.raises(BadInput) as raised:
            traits.of(block, "x")
        assert message in raised.value.why
    with pytest.raises(BadInput, match="no engine named 'llama'"):
        traits.load("llama")


# --- where headers come from ---
def test_a_preset_without_files_is_planned_from_its_outline() -> None:
    found = headers.of_preset(schema.load("quality"))
    assert found.outlined
    plan, origin = ask.answer(ask.Request(preset="quality", free_gib=106.5))
    assert "outline" in origin
    weights = [term for term in plan.terms if "weights" in term.name]
    assert {term.certainty for term in weights} == {"measured"}
    assert plan.bytes_of("weights_device") / MIB == pytest.approx(78_056.46, abs=0.2), "what the log said"
    iq4, _ = ask.answer(ask.Request(preset="longctx", free_gib=106.5))
    assert iq4.bytes_of("weights_device") / MIB == pytest.approx(61_222.13, abs=0.2)


def test_every_preset_of_ours_fits_the_machine_it_is_for() -> None:
    for name in schema.names():
        plan, _ = ask.answer(ask.Request(preset=name, free_gib=106.5))
        assert plan.verdict in ("fits", "tight"), (name, plan.verdict, plan.headroom_bytes)


def test_hollow_files_are_preferred_to_the_outline(tmp_path: Path) -> None:
    preset = schema.load("quality")
    model = hollow.write(shapes.MODELS["qwen4exp"](), tmp_path / "m.gguf")
    for entry, names in ((str(preset.quant), 4), (f"heads/{preset.head}", 1)):
        folder = tmp_path / "home" / "headers" / preset.model / entry
        folder.mkdir(parents=True)
        files = headers_of(preset, entry)
        assert len(files) == names
        source = shapes.MODELS["qwen4exp" if names == 4 else "qwen4exp-head"]()
        if names == 1:
            hollow.write(source, folder / files[0])
        else:
            for made, name in zip(hollow.write_split(source, folder, "x", 4), files, strict=True):
                made.rename(folder / name)
    found = headers.of_preset(preset)
    assert not found.outlined
    assert found.header.shards == 4
    assert found.draft is not None
    one = headers.of_files(model, None)
    assert sorted(t.name for t in found.header.tensors) == sorted(t.name for t in one.header.tensors)


def headers_of(preset: schema.Preset, entry: str) -> list[str]:
    from presets import catalog

    model = catalog.model(preset.model)
    files = {**model.quants, **{f"heads/{name}": head for name, head in model.heads.items()}}[entry]
    return [shard.name for shard in files.shards]


def test_a_file_with_settings(tmp_path: Path) -> None:
    path = hollow.write(shapes.MODELS["qwen3-8b"](), tmp_path / "m.gguf")
    draft = hollow.write(shapes.MODELS["qwen3-0.6b"](), tmp_path / "d.gguf")
    request = ask.Request(
        gguf=str(path), draft=str(draft), settings=("ctx=8192", "slots=2"), free_gib=32, flavour="cpu"
    )
    plan, origin = ask.answer(request)
    assert origin == str(path)
    assert plan.bytes_of("draft_weights") > 600 * MIB, "--draft alone means draft-simple"
    assert plan.per_slot_context == 4096
    head = hollow.write(shapes.MODELS["qwen4exp-head"](), tmp_path / "h.gguf")
    trunk = hollow.write(shapes.MODELS["qwen4exp"](), tmp_path / "t.gguf")
    mtp, _ = ask.answer(
        ask.Request(gguf=str(trunk), draft=str(head), settings=("ctx=8192", "slots=1"), free_gib=200)
    )
    assert mtp.bytes_of("recurrent_state") == 4 * 118_038_528, "a head means draft-mtp, n-max 3"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ask.Request(preset="demo", gguf="m.gguf"), "exclude each other"),
        (ask.Request(draft="d.gguf"), "goes with --gguf"),
        (ask.Request(preset="demo", settings=("ctx",)), "not key=value"),
        (ask.Request(preset="demo", settings=("ctx=1", "ctx=2")), "given twice"),
        (ask.Request(preset="quallity"), "no preset"),
        (ask.Request(gguf="/no/such.gguf"), "cannot read"),
        (ask.Request(gguf="some/model.gguf"), "cannot read"),
        (ask.Request(gguf="https://hub.example/a/b/resolve/main/c.gguf"), "names main, which"),
        (ask.Request(gguf="a/b@main:q4/c.gguf"), "names main, which is not a full commit"),
        (ask.Request(gguf="a/b@0a1b2c3:c.gguf"), "names 0a1b2c3, which is not a full commit"),
        (ask.Request(gguf="qwen3.8-flash-next/UD-Q5"), "has no 'UD-Q5'"),
        (ask.Request(preset="demo", engine="llama"), "no engine named"),
        (ask.Request(preset="demo", flavour="cuda"), "no flavour"),
    ],
)
def test_bad_requests_are_named(request_: ask.Request, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        ask.answer(request_)


def test_amounts_and_logs_from_a_command_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="abc is not a number"):
        ask.Request.of("demo", "", "", [], "abc", None, "", "")  # type: ignore[arg-type]
    assert ask.box("16", "2").budget_bytes == 14 * GIB
    (tmp_path / "server.log").write_text(REAL)
    assert ask.log_of(str(tmp_path / "server.log")).measured
    with pytest.raises(BadInput, match="cannot read"):
        ask.log_of(str(tmp_path / "none.log"))
