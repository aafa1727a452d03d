"""Plans as a whole: the JSON contract, verdicts, warnings, and that more of anything never takes less."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from errors import BadInput, HostLacks
from presets import gguf
from presets.planner import (
    CPU,
    GFX1151,
    Budget,
    Device,
    Options,
    Plan,
    Question,
    Term,
    assess,
    override,
    plan,
    show,
)
from presets.planner import host as hosts
from presets.planner.terms import GIB, MIB, ORDER
from tests.makers import hollow, shapes
from tests.unit.planner_headers import B11434, BOX, PLENTY, header, mib, planned

CONTRACT = {
    "type": "object",
    "additionalProperties": False,
    "required": [
        "preset", "verdict", "exit_code", "budget_bytes", "reserve_bytes", "total_bytes", "headroom_bytes",
        "per_slot_context", "kv_cells", "terms", "warnings", "advice",
    ],
    "properties": {
        "preset": {"type": "string"},
        "verdict": {"enum": ["fits", "tight", "too-big", "unknown"]},
        "exit_code": {"enum": [0, 4]},
        **{f"{name}_bytes": {"type": "integer"} for name in ("budget", "reserve", "total", "headroom")},
        "per_slot_context": {"type": "integer", "minimum": 1},
        "kv_cells": {"type": "integer", "minimum": 1},
        "warnings": {"type": "array", "items": {"type": "string"}},
        "advice": {"type": "array", "items": {"type": "string"}},
        "terms": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "bytes", "where", "certainty", "formula"],
                "properties": {
                    "name": {"enum": list(ORDER)},
                    "bytes": {"type": "integer", "minimum": 1},
                    "where": {"enum": ["device", "host"]},
                    "certainty": {"enum": ["exact", "bounded", "measured"]},
                    "formula": {"type": "string", "minLength": 8},
                },
            },
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in shapes.MODELS if name != "qwen4exp-head"])
def test_the_document_keeps_the_contract(name: str) -> None:
    found = planned(name, budget=BOX, ctx=32768, slots=2)
    document = found.to_json()
    jsonschema.validate(document, CONTRACT)
    assert document["total_bytes"] == sum(term["bytes"] for term in document["terms"])
    assert document["headroom_bytes"] == document["budget_bytes"] - document["total_bytes"]
    assert [term["name"] for term in document["terms"]] == sorted(
        (term["name"] for term in document["terms"]), key=ORDER.index
    )


def test_the_box_of_this_project_with_the_model_of_true_shape() -> None:
    found = planned(
        "qwen4exp", draft="qwen4exp-head", budget=BOX, ctx=131072, slots=1, batch=8192, ubatch=2048,
        cache_type_k="q8_0", cache_type_v="q8_0", spec_types=("draft-mtp", "ngram-mod"), draft_n_max=4,
        lazy_mode="on", load_mode="none", cache_ram_mib=2048, ctx_checkpoints=8,
    )  # fmt: skip
    assert mib(found, "weights_device") == 76553.08
    assert mib(found, "weights_host") == 644.14
    assert mib(found, "kv_cache") == 1632.00
    assert mib(found, "indexer_cache") == 408.00
    assert mib(found, "recurrent_state") == 562.85
    assert mib(found, "draft_kv_cache") == 320.00
    assert mib(found, "draft_weights") == pytest.approx(2239.72 + 644.14, abs=0.02)
    assert found.bytes_of("output") == 4 * 248320 * (65 + 1) + 4 * 10240 * 8192
    assert found.verdict == "tight"


@pytest.mark.parametrize(
    ("lazy", "device", "resident"),
    [
        ("auto", GFX1151, 28_800_138_240), ("on", GFX1151, B11434.lazy_resident_bytes),
        ("off", GFX1151, 28_800_138_240), ("auto", CPU, B11434.lazy_resident_bytes),
        ("off", CPU, 28_800_138_240),
    ],
)  # fmt: skip
def test_the_n_gram_table_by_lazy_mode_and_device(lazy: str, device: object, resident: int) -> None:
    found = planned("qwen4exp", device=device, ctx=4096, slots=1, lazy_mode=lazy)  # type: ignore[arg-type]
    assert found.bytes_of("ngram_table") == resident
    assert any("lazy_mode=on" in line for line in found.warnings) is (resident > 3 * GIB)


def test_a_whole_table_gives_the_best_advice() -> None:
    found = planned("qwen4exp", budget=BOX, ctx=32768, slots=1, cache_ram_mib=0, ctx_checkpoints=1)
    assert found.verdict == "too-big"
    assert found.exit_code == 4
    assert found.advice[0].startswith("lazy_mode=on frees 24801 MiB and makes it fit")


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ({"slots": 8, "ubatch": 16, "spec_types": ("draft-mtp",)}, "ubatch 16 < slots x (1 + draft) = 32"),
        ({"ctx_checkpoints": 0}, "no prompt is ever reused"),
        ({"slots": 4, "spec_types": ("draft-mtp",)}, "MTP with several busy slots"),
        ({"ctx": 524288}, "a slot is capped at 262144"),
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "flash_attn off: the engine refuses"),
        ({"cache_type_k": "q4_0"}, "ruins the output"),
        ({"cache_ram_mib": -1}, "without a limit"),
        ({"ctx": 10000, "slots": 3}, "ctx 10000 becomes 10752 cells"),
        ({"slots": 2, "kv_unified": True}, "when it is full, all requests fail"),
    ],
)
def test_warnings(given: dict[str, object], warning: str) -> None:
    options = {"ctx": 32768, "slots": 1} | given
    found = planned("qwen4exp-mtp", **options)  # type: ignore[arg-type]
    assert any(warning in line for line in found.warnings), found.warnings
    assert not any(warning in line for line in planned("qwen4exp", ctx=32768, slots=1).warnings)


def test_warnings_about_heads_and_types() -> None:
    assert any(
        "needs an MTP head" in w for w in planned("qwen4exp", slots=1, spec_types=("draft-mtp",)).warnings
    )
    assert any("head alone" in w for w in planned("qwen4exp-head", ctx=4096, slots=1).warnings)
    mixed = planned("deepseek2-lite", ctx=4096, slots=1, cache_type_k="q8_0", cache_type_v="f16")
    assert any("one type for K and V" in line for line in mixed.warnings)
    none = planned("qwen3-8b", ctx=4096, slots=1, spec_types=("draft-simple",))
    assert any("needs a draft model" in line for line in none.warnings)


def test_unknown_architectures_are_never_said_to_fit() -> None:
    base = shapes.MODELS["qwen3-0.6b"]()
    keys = {key.replace("qwen3.", "qwen9foo."): value for key, value in base.metadata.items()}
    model = replace(base, metadata=keys | {"general.architecture": "qwen9foo"})
    strange = gguf.parse(hollow.head(model), file_size=1 << 50, complete=False)
    found = plan(strange, None, Options(ctx=4096, slots=1), B11434, CPU, PLENTY)
    assert (found.verdict, found.exit_code) == ("unknown", 4)
    assert found.bytes_of("kv_cache") > 0
    assert all(term.certainty != "exact" for term in found.terms if not term.name.startswith("weights"))
    assert any("never been compared" in line for line in found.warnings)
    told = Term(
        name="kv_cache", bytes=7 * MIB, where="host", certainty="measured", formula="the engine's own"
    )
    known = plan(strange, None, Options(ctx=4096, slots=1), B11434, CPU, PLENTY, projection=[told])
    assert known.verdict == "fits"
    assert known.bytes_of("kv_cache") == 7 * MIB


def test_verdicts_by_headroom_and_second_ceiling() -> None:
    need = planned("qwen35-27b", ctx=32768, slots=1, cache_ram_mib=0, ctx_checkpoints=1).total_bytes
    for spare, verdict in ((-1, "too-big"), (0, "tight"), (3 * GIB - 1, "tight"), (3 * GIB, "fits")):
        budget = Budget(available_bytes=need + spare, reserve_bytes=0)
        found = planned("qwen35-27b", budget=budget, ctx=32768, slots=1, cache_ram_mib=0, ctx_checkpoints=1)
        assert found.verdict == verdict, spare
    low = Budget(available_bytes=need * 2, reserve_bytes=0, gtt_bytes=need // 2)
    found = planned("qwen35-27b", budget=low, ctx=32768, slots=1, cache_ram_mib=0, ctx_checkpoints=1)
    assert found.verdict == "too-big"
    assert any("gttsize" in line for line in found.warnings)


def test_a_small_model_on_a_small_host_fits_without_gigabytes_to_spare() -> None:
    small = Budget(available_bytes=3 * GIB, reserve_bytes=1 * GIB)
    found = planned("gemma3-270m", device=CPU, budget=small, ctx=4096, slots=1, cache_ram_mib=64)
    assert found.verdict == "fits"


NAMES = ("qwen4exp-mtp", "qwen35-27b-mtp", "gemma4-12b", "gpt-oss-120b", "qwen3-30b-a3b", "lfm2-1.2b")
MORE = {
    "ctx": st.integers(256, 300_000),
    "slots": st.integers(1, 32),
    "ubatch": st.integers(1, 4096),
    "draft_n_max": st.integers(1, 16),
    "ctx_checkpoints": st.integers(0, 64),
    "cache_ram_mib": st.integers(0, 20_000),
}


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    key=st.sampled_from(sorted(MORE)),
    data=st.data(),
    unified=st.booleans(),
    kind=st.sampled_from(["f16", "q8_0", "q4_0"]),
    device=st.sampled_from([CPU, GFX1151]),
    flash=st.sampled_from(["auto", "off"]),
)
def test_more_never_takes_less(
    name: str, key: str, data: st.DataObject, unified: bool, kind: str, device: Device, flash: str
) -> None:
    drawn: dict[str, Any] = {other: data.draw(numbers, label=other) for other, numbers in MORE.items()}
    low, high = sorted(data.draw(st.tuples(MORE[key], MORE[key]), label=key))
    drawn |= {"batch": 4096, "kv_unified": unified, "cache_type_k": kind, "cache_type_v": kind}
    drawn["flash_attn"] = flash
    drawn["spec_types"] = ("draft-mtp",) if name.endswith("mtp") else ()
    if key == "slots":
        # The engine takes less for more slots where a split cache leaves each fewer cells, and where it
        # rounds the ubatch up to a multiple of the slots; so: one pool, powers of two, a ubatch of 64s.
        low, high = (1 << number.bit_length() - 1 for number in (low, high))
        drawn |= {"kv_unified": True, "ubatch": -(-drawn["ubatch"] // 64) * 64}
    few, many = (sized(name, device, {**drawn, key: value}) for value in (low, high))
    assert few.total_bytes <= many.total_bytes, (key, low, high, differing(few, many))
    assert min(term.bytes for term in few.terms) > 0


def sized(name: str, device: Device, options: dict[str, Any]) -> Plan:
    """A plan without advice, which would ask for many more plans."""
    return assess(
        Question(
            header=header(name), draft=None, options=Options(**options), traits=B11434, device=device,
            budget=PLENTY,
        )
    )  # fmt: skip


def differing(few: Plan, many: Plan) -> dict[str, tuple[int, int]]:
    names = {term.name for term in (*few.terms, *many.terms)}
    pairs = {name: (few.bytes_of(name), many.bytes_of(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] > pair[1]}


def test_settings_from_a_command_line() -> None:
    options = override(
        Options(), {"ctx": "32768", "slots": "auto", "kv_unified": "on", "spec_type": "draft-mtp,ngram-mod"}
    )
    assert (options.ctx, options.slots, options.kv_unified) == (32768, None, True)
    assert options.spec_types == ("draft-mtp", "ngram-mod")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"contx": "1"}, "no setting 'contx'"),
        ({"ctx": "many"}, "not a whole number"),
        ({"ctx": "-5"}, "at least 0"),
        ({"slots": "300"}, "slots is 300"),
        ({"repack": "perhaps"}, "not a switch"),
        ({"cache_type_k": "q9_9"}, "'q9_9'"),
        ({"spec_type": "draft"}, "'draft'"),
        ({"load_mode": "fast"}, "'fast'"),
    ],
)
def test_bad_settings_are_named(setting: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        override(Options(), setting)


MEMINFO = "MemTotal:       115001344 kB\nMemFree:         1000000 kB\nMemAvailable:   111673344 kB\n"


def test_the_budget_is_read_from_the_host(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    for card, size in (("card0", 512), ("card1", 124 * GIB)):
        (tmp_path / card / "device").mkdir(parents=True)
        (tmp_path / card / "device" / "mem_info_gtt_total").write_text(f"{size}\n")
    found = hosts.budget(meminfo_path=tmp_path / "meminfo", cards=tmp_path)
    assert found.available_bytes == 111673344 * 1024
    assert (found.reserve_bytes, found.gtt_bytes) == (6 * GIB, 124 * GIB)
    assert hosts.budget(free_gib=106.5).budget_bytes == int(100.5 * GIB)
    assert hosts.budget(free_gib=8).reserve_bytes == GIB, "a small machine keeps an eighth, at least 1 GiB"
    assert hosts.budget(free_gib=4, reserve_gib=9).budget_bytes == 0
    with pytest.raises(HostLacks, match="cannot read"):
        hosts.budget(meminfo_path=tmp_path / "none")
    with pytest.raises(HostLacks, match="no MemAvailable"):
        hosts.meminfo("MemTotal: 1 kB\n")
    with pytest.raises(BadInput, match="--free is -1"):
        hosts.budget(free_gib=-1)


def test_the_view_shows_every_term_and_the_verdict() -> None:
    found = planned("qwen4exp", budget=BOX, ctx=32768, slots=1)
    text = show.text(found, width=160)
    for term in found.terms:
        assert term.name in text
        assert f"{term.bytes / MIB:,.2f}" in text
    assert "too big" in text
    assert all(line in text for line in found.advice)
    assert "\x1b" not in text
    assert "\x1b" in show.text(found, width=160, colour=True)


def test_part_of_the_layers_on_the_device() -> None:
    whole = planned("qwen3-8b", ctx=8192, slots=1)
    half = planned("qwen3-8b", ctx=8192, slots=1, n_gpu_layers=19)
    none = planned("qwen3-8b", ctx=8192, slots=1, n_gpu_layers=0)
    assert whole.bytes_of("kv_cache") == half.bytes_of("kv_cache") == none.bytes_of("kv_cache")
    sides = {term.where: term.bytes for term in half.terms if term.name == "kv_cache"}
    assert sides == {"host": whole.bytes_of("kv_cache") // 2, "device": whole.bytes_of("kv_cache") // 2}
    layers = [t.nbytes for t in header("qwen3-8b").tensors if t.name.startswith("blk.0.")]
    moved = whole.bytes_of("weights_device") - half.bytes_of("weights_device")
    assert moved == pytest.approx(18 * sum(layers), rel=1e-4), "19 of 37: the output and 18 layers"
    assert none.bytes_of("weights_device") == 0
    assert {term.certainty for term in half.terms if term.name.startswith("compute")} == {"bounded"}


def test_layers_that_differ_are_split_by_what_they_keep() -> None:
    found = planned("qwen35-27b", ctx=8192, slots=1, n_gpu_layers=1)
    assert {term.where for term in found.terms if term.name in ("kv_cache", "recurrent_state")} == {"host"}
    found = planned("qwen35-27b", ctx=8192, slots=1, n_gpu_layers=2)
    assert [t.where for t in found.terms if t.name == "kv_cache"] == ["device", "host"]
    assert [t.where for t in found.terms if t.name == "recurrent_state"] == ["host"], (
        "the last layer has attention"
    )


def test_tensors_that_are_sent_elsewhere() -> None:
    plain = planned("qwen3-30b-a3b", ctx=4096, slots=1)
    moved = planned("qwen3-30b-a3b", ctx=4096, slots=1, override_tensor=r"blk\.[0-9]\.ffn_.*_exps=CPU")
    experts = sum(
        t.nbytes
        for t in header("qwen3-30b-a3b").tensors
        if "_exps" in t.name and int(t.name.split(".")[1]) < 10
    )
    assert moved.bytes_of("weights_host") - plain.bytes_of("weights_host") == experts
    fewer = plain.bytes_of("weights_device") - moved.bytes_of("weights_device")
    assert fewer == pytest.approx(experts, rel=1e-5), "less the padding of rows that HIP adds"
    for wrong in ("exps", "=CPU", "[=CPU"):
        with pytest.raises(BadInput, match="override_tensor"):
            Options(override_tensor=wrong)
