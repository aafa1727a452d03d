"""Compute buffers on a GPU: against ROCm logs of gfx1151 and a stub device with HIP's rules.

The stub's figures (b11434, true shape of qwen4exp, hollow) were taken with a library that pretends to be an
integrated ROCm GPU: alignment, row padding, flash attention's scratch and operator support of ggml-cuda.
"""

from __future__ import annotations

import pytest

from presets.planner import GFX1151, Options, compute, shape
from presets.planner.compute import Buffer
from tests.unit.planner_headers import B11434, architecture

STUB_Q8_0 = {
    32768: {64: 93.15, 128: 110.32, 256: 188.64, 512: 310.30, 1024: 545.59, 2048: 912.22},
    131072: {64: 333.64, 128: 400.54, 256: 568.42, 512: 866.08, 1024: 1473.39, 2048: 2376.03},
    262144: {512: 1616.45, 2048: 4306.38},
}
STUB_F16 = {
    32768: {64: 34.34, 128: 56.55, 256: 112.38, 512: 222.04, 1024: 433.32, 2048: 863.95},
    131072: {64: 117.12, 128: 143.77, 256: 300.16, 512: 585.81, 1024: 1169.12, 2048: 2327.77},
}
STUB_HOST = {(32768, 512): 65.86, (32768, 2048): 261.24, (131072, 512): 187.27, (131072, 2048): 742.65}
STUB_SLOTS = [
    (32768, 512, 4, False, 219.74, 41.86), (32768, 512, 4, True, 317.83, 91.27),
    (32768, 512, 8, False, 215.65, 37.86), (32768, 512, 8, True, 349.20, 125.14),
    (131072, 2048, 4, False, 1261.77, 358.65), (131072, 2048, 4, True, 2502.12, 1132.27),
    (131072, 2048, 8, False, 1197.40, 294.65), (131072, 2048, 8, True, 4083.62, 1651.77),
]  # fmt: skip
STUB_MTP = {
    32768: {64: 31.21, 128: 44.69, 256: 91.31, 512: 178.05, 1024: 351.52, 2048: 698.47},
    131072: {64: 107.80, 128: 133.47, 256: 185.81, 512: 430.64, 1024: 845.11, 2048: 1672.06},
}
CELLS = [(kind, ctx, ubatch, told) for kind, table in (("q8_0", STUB_Q8_0), ("f16", STUB_F16))
         for ctx, row in table.items() for ubatch, told in row.items()]  # fmt: skip


def sized(name: str, **given: object) -> Buffer:
    options = Options(**given)  # type: ignore[arg-type]
    arch = architecture(name)
    sizes = shape(options, B11434, trained=arch.trained, rollback=True)
    return compute.buffer(arch, sizes, options, B11434, GFX1151)


@pytest.mark.parametrize(("kind", "ctx", "ubatch", "told"), CELLS)
def test_one_slot_on_the_stub_device(kind: str, ctx: int, ubatch: int, told: float) -> None:
    found = sized("qwen4exp", ctx=ctx, slots=1, ubatch=ubatch, cache_type_k=kind, cache_type_v=kind)
    error = found.device / 2**20 / told - 1
    if found.certainty == "measured":
        assert -0.01 <= error <= 0.07
    else:
        assert -0.035 <= error <= 0.18
    if (host := STUB_HOST.get((ctx, ubatch))) and kind == "q8_0":
        assert found.host / 2**20 == pytest.approx(host, rel=0.01)


@pytest.mark.parametrize(("ctx", "ubatch", "slots", "unified", "device", "host"), STUB_SLOTS)
def test_several_slots_are_bounded(
    ctx: int, ubatch: int, slots: int, unified: bool, device: float, host: float
) -> None:
    found = sized(
        "qwen4exp", ctx=ctx, slots=slots, ubatch=ubatch, kv_unified=unified, cache_type_k="q8_0",
        cache_type_v="q8_0",
    )  # fmt: skip
    assert found.certainty == "bounded"
    assert device <= found.device / 2**20 <= device * 1.35
    assert found.host / 2**20 == pytest.approx(host, rel=0.03)


@pytest.mark.parametrize(("ctx", "ubatch"), [(c, u) for c, row in STUB_MTP.items() for u in row])
def test_the_head_of_qwen4exp_is_bounded(ctx: int, ubatch: int) -> None:
    arch = architecture("qwen4exp-head")
    options = Options(ctx=ctx, slots=1, ubatch=ubatch)
    sizes = shape(options, B11434, trained=arch.trained, rollback=False)
    told = STUB_MTP[ctx][ubatch]
    assert told <= compute.mtp_buffer(arch, sizes, options, B11434, GFX1151).device / 2**20 <= told * 1.36


def test_quantized_caches_are_copied_for_flash_attention() -> None:
    """2048 elements a cell, one layer at a time, beside a mask of 512 tokens; each entry 2 B."""
    plain, packed = (
        [
            sized("qwen35-27b", ctx=ctx, slots=1, cache_type_k=kind, cache_type_v=kind)
            for ctx in (131072, 262144)
        ]
        for kind in ("f16", "q8_0")
    )
    assert plain[1].device - plain[0].device == 131072 * 512 * 2
    assert packed[1].device - packed[0].device == 131072 * (2048 + 512) * 2


def test_whole_batches_of_logits_on_older_builds() -> None:
    from patches.traits import Traits

    old = Traits(server_limits_outputs=False)
    arch = architecture("qwen3-32b")
    options = Options(ctx=16384, slots=1, ubatch=2048)
    sizes = shape(options, old, trained=arch.trained, rollback=False)
    found = compute.buffer(arch, sizes, options, old, GFX1151)
    assert found.device / 2**20 >= 2048 * 151936 * 4 / 2**20
