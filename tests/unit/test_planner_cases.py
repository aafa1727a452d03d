"""Real users' cases: figures that were measured by others, on models of the same shape."""

from __future__ import annotations

from dataclasses import replace

import pytest

from patches.traits import Traits
from presets.planner import CPU, Budget, Options, plan
from presets.planner.terms import GIB, MIB
from tests.makers import shapes
from tests.makers.hollow import Model
from tests.unit.planner_headers import B11434, PLENTY, header, header_of, mib, planned


def test_case_1_coder_next_with_four_slots_and_a_big_ubatch() -> None:
    found = planned("qwen3next-80b", ctx=32768, slots=4, kv_unified=True, ubatch=2048, flash_attn="on")
    assert mib(found, "kv_cache") == 768.00
    assert mib(found, "recurrent_state") == 301.50
    assert mib(found, "compute_host") < 288.05, "builds of that date had masks of 4 bytes"
    old = planned(
        "qwen3next-80b", ctx=32768, slots=4, kv_unified=True, ubatch=2048,
        traits=Traits(mask_bytes=4, server_limits_outputs=False, mixed_inputs=False),
    )  # fmt: skip
    assert mib(old, "compute_host") == pytest.approx(288.05, abs=0.3)
    assert mib(old, "compute_device") >= 1219.00, "a whole batch of logits was reserved then"


def test_case_3_dense_qwen_at_full_context_on_gfx1151() -> None:
    found = planned("qwen35-27b", ctx=262144, slots=1, traits=Traits(mixed_inputs=False))
    assert mib(found, "kv_cache") == 16384.00
    assert mib(found, "recurrent_state") == 149.62
    assert mib(found, "compute_device") == pytest.approx(378.02, abs=2)
    assert mib(found, "compute_host") == pytest.approx(276.02, abs=1)
    embedding = header("qwen35-27b").by_name["token_embd.weight"].nbytes
    assert found.bytes_of("weights_host") == embedding, "the token embedding stays on the host"


def test_case_5_rows_for_rollback_with_mtp() -> None:
    runs = {
        ctx: planned(
            "qwen35-27b-mtp", ctx=ctx, slots=1, spec_types=("draft-mtp",), draft_n_max=2, ubatch=2048
        )
        for ctx in (8192, 32768)
    }
    assert [mib(run, "kv_cache") for run in runs.values()] == [512.00, 2048.00]
    assert {mib(run, "recurrent_state") for run in runs.values()} == {448.88}
    slope = runs[32768].bytes_of("compute_device") - runs[8192].bytes_of("compute_device")
    assert slope == 96 * MIB, "ubatch x 2 B for each of 24576 more cells"
    assert runs[32768].bytes_of("compute_host") - runs[8192].bytes_of("compute_host") == 96 * MIB


def nextn(arch: str) -> Model:
    """A model of an architecture nobody knows, with one extra block."""
    base = shapes.MODELS["glm45-air"]()
    keys = {
        key.replace("glm4moe.", f"{arch}.") if key.startswith("glm4moe.") else key: value
        for key, value in base.metadata.items()
    }
    return replace(base, metadata=keys | {"general.architecture": arch})


def test_case_7_mtp_without_a_known_layer_filter() -> None:
    found = plan(
        header_of(nextn("longcat-flash")), None, Options(ctx=65535, slots=1, spec_types=("draft-mtp",)),
        B11434, CPU, PLENTY,
    )  # fmt: skip
    kept = found.bytes_of("kv_cache")
    assert found.bytes_of("draft_kv_cache") == kept * 47 // 46, "all blocks, the extra one too"
    assert {term.certainty for term in found.terms if term.name == "draft_kv_cache"} == {"bounded"}
    assert found.verdict == "unknown"
    assert found.exit_code == 4
    assert any("duplicate the whole KV" in line for line in found.warnings)
    filtered = planned("glm45-air", ctx=65535, slots=1, spec_types=("draft-mtp",))
    assert filtered.bytes_of("draft_kv_cache") == filtered.bytes_of("kv_cache") // 46
    other = planned(
        "glm45-air", ctx=65535, slots=1, spec_types=("draft-mtp",), traits=Traits(mtp_layer_filter=False)
    )
    assert other.bytes_of("draft_kv_cache") == other.bytes_of("kv_cache") * 47 // 46


def test_case_8_gpt_oss_at_an_odd_context_with_default_slots() -> None:
    found = planned("gpt-oss-120b", ctx=65535)
    assert found.kv_cells == 65536
    assert mib(found, "kv_cache") == 2304.00
    assert mib(found, "kv_cache_swa") == 36.00
    assert any("1 x 1024 cells" in t.formula for t in found.terms if t.name == "kv_cache_swa")


@pytest.mark.parametrize(
    ("ctx", "slots", "kind", "total"),
    [
        (8192, None, "q8_0", 833), (8192, 1, "q8_0", 323), (16384, 1, "q8_0", 391),
        (4096, 1, "q8_0", 289), (8192, 1, "q4_0", 171), (8192, 1, "f16", 608),
    ],
)  # fmt: skip
def test_case_9_gemma4_six_ways(ctx: int, slots: int | None, kind: str, total: int) -> None:
    found = planned("gemma4-12b", ctx=ctx, slots=slots, cache_type_k=kind, cache_type_v=kind)
    assert round(mib(found, "kv_cache") + mib(found, "kv_cache_swa")) == total
    fixed = planned(
        "gemma4-12b", ctx=8192, cache_type_k="q8_0", cache_type_v="q8_0",
        traits=Traits(swa_cache_quantized=False),
    )  # fmt: skip
    assert mib(fixed, "kv_cache_swa") == 1440.00, "builds of spring 2026 kept the window in f16"


def test_case_9_advice_names_one_slot_before_a_smaller_context() -> None:
    small = Budget(available_bytes=8 * GIB, reserve_bytes=0)
    found = planned(
        "gemma4-12b", budget=small, ctx=8192, cache_type_k="q8_0", cache_type_v="q8_0", cache_ram_mib=0,
        ctx_checkpoints=0,
    )  # fmt: skip
    assert found.verdict == "too-big"
    slots = next(i for i, line in enumerate(found.advice) if line.startswith("slots=1 frees 5"))
    assert all(i > slots for i, line in enumerate(found.advice) if line.startswith("ctx="))


@pytest.mark.parametrize("name", ["qwen35moe-35b", "qwen35moe-35b-mtp", "qwen35moe-35b-array"])
def test_case_13_extra_blocks_and_arrays_do_not_shift_the_pattern(name: str) -> None:
    found = planned(name, ctx=32768, slots=4, kv_unified=True)
    assert mib(found, "kv_cache") == 640.00
    assert mib(found, "recurrent_state") == 251.25


@pytest.mark.parametrize(
    ("slots", "ctx", "total"),
    [(1, 4096, 27.0), (2, 4096, 42.0), (4, 4096, 72.0), (8, 4096, 72.0), (1, 8192, 39.0), (2, 8192, 54.0)],
)
def test_case_14_gemma3_slots_against_context(slots: int, ctx: int, total: float) -> None:
    found = planned("gemma3-270m", ctx=ctx, slots=slots, kv_unified=False)
    assert mib(found, "kv_cache") + mib(found, "kv_cache_swa") == total
    stated = plan(
        header_of(shapes.gemma3(period=6)), None, Options(ctx=ctx, slots=slots), B11434, CPU, PLENTY
    )
    assert stated.bytes_of("kv_cache_swa") == found.bytes_of("kv_cache_swa")


@pytest.mark.parametrize(
    ("name", "ctx", "kinds", "total"),
    [
        ("qwen2-32b", 32768, ("q8_0", "q8_0"), 4352.0),
        ("llama-70b", 4096, ("f16", "f16"), 1280.0),
        ("qwen3-32b", 16384, ("f16", "f16"), 4096.0),
        ("qwen3-8b", 40960, ("f16", "f16"), 5760.0),
    ],
)
def test_case_18_dense_baselines(name: str, ctx: int, kinds: tuple[str, str], total: float) -> None:
    found = planned(name, ctx=ctx, slots=1, cache_type_k=kinds[0], cache_type_v=kinds[1])
    assert mib(found, "kv_cache") == total


def test_case_18_half_of_a_70b_in_q8_0() -> None:
    """K q8_0 at 25600: the 2125.00 of the report is the K half alone."""
    both = planned("llama-70b", ctx=25600, slots=1, cache_type_k="q8_0", cache_type_v="q8_0")
    assert mib(both, "kv_cache") == 2 * 2125.0


def test_case_21_the_draft_is_sized_by_the_total_context() -> None:
    found = planned("qwen35-27b-mtp", ctx=65536, slots=4, kv_unified=False, spec_types=("draft-mtp",))
    assert found.per_slot_context == 16384
    assert found.bytes_of("draft_kv_cache") == 65536 * 4 * 256 * 2 * 2
    bare = planned("qwen35-27b-mtp", slots=1, spec_types=("draft-mtp",))
    assert any("set ctx" in line for line in bare.warnings)


def test_case_43_a_container_limit_against_the_prompt_cache() -> None:
    tight = Budget(available_bytes=100 * GIB, container_bytes=6 * GIB)
    found = planned("qwen3-0.6b", device=CPU, budget=tight, ctx=4096, slots=1)
    assert mib(found, "prompt_cache") == 8192.0
    assert found.verdict == "too-big"
    assert any("8192 MiB against a container limit of 6144 MiB" in line for line in found.warnings)
    off = planned("qwen3-0.6b", device=CPU, budget=tight, ctx=4096, slots=1, cache_ram_mib=0)
    assert off.bytes_of("prompt_cache") == 0
    assert off.verdict == "fits"


def test_case_46_slots_left_out_share_one_pool() -> None:
    found = planned("qwen3-8b", ctx=32768)
    assert (found.shape.slots, found.shape.unified, found.per_slot_context) == (4, True, 32768)
    assert any("4 slots on one pool of 32768 tokens" in line for line in found.warnings)
    split = planned("qwen3-8b", ctx=32768, slots=4)
    assert (split.shape.unified, split.per_slot_context) == (False, 8192)


ENGRAMHALO = Traits(
    indexer_k_heads=1,
    indexer_v_heads=2,
    qwen4exp_draft_memory="plain",
    lazy_auto={"cpu": True, "gpu": True, "igpu": True},
)


def test_the_published_figures_come_out_with_the_traits_of_their_tree() -> None:
    run = planned(
        "qwen4exp", draft="qwen4exp-head", traits=ENGRAMHALO, ctx=32768, slots=1, cache_type_k="q8_0",
        cache_type_v="q8_0", spec_types=("draft-mtp",), draft_n_max=4,
    )  # fmt: skip
    assert mib(run, "kv_cache") == 408.00
    assert mib(run, "indexer_cache") == 153.00
    assert (run.bytes_of("kv_cache") + run.bytes_of("indexer_cache")) / 32768 == 17_952
    assert mib(run, "draft_kv_cache") == 64.00
    team = planned(
        "qwen4exp", draft="qwen4exp-head", traits=ENGRAMHALO, ctx=131072, slots=8, kv_unified=False,
        spec_types=("draft-mtp",), draft_n_max=4, cache_type_k="q8_0", cache_type_v="q8_0",
    )  # fmt: skip
    assert mib(team, "recurrent_state") == 4502.81
    assert mib(team, "draft_kv_cache") == 256.00


@pytest.mark.parametrize(
    ("tokens", "size"),
    [(5038, 122.5), (7086, 126.6), (24640, 161.3), (26688, 165.3), (53592, 218.5), (68539, 248.0)],
)
def test_a_checkpoint_grows_with_a_plain_draft_cache(tokens: int, size: float) -> None:
    from presets.planner import caches, shape
    from tests.unit.planner_headers import architecture

    arch = architecture("qwen4exp-mtp")
    given = Options(ctx=262144, slots=1, spec_types=("draft-mtp",), draft_n_max=4)
    sizes = shape(given, ENGRAMHALO, trained=arch.trained, rollback=True)
    one = caches.checkpoint(arch, sizes, given, ENGRAMHALO)
    assert one is not None
    assert one.per_token == 2072
    assert one.bytes_at(tokens) / MIB == pytest.approx(size, abs=0.3)
    ours = caches.checkpoint(arch, sizes, given, B11434)
    assert ours is not None
    assert ours.per_token == 0
    assert ours.fixed / MIB == pytest.approx(112.571, abs=0.002)
