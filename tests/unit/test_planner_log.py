"""The log parser on every shape of log that tools have misread. Log lines stand as they were printed."""

# ruff: noqa: E501

from __future__ import annotations

import json

import pytest

from presets.planner import log

FITTING = """\
0.00.039.100 I load_tensors:        CPU model buffer size =     0.00 MiB
0.00.039.101 I load_tensors:      ROCm0 model buffer size =     0.00 MiB
0.00.040.000 I llama_context: n_seq_max             = 1
0.00.040.001 I llama_kv_cache:      ROCm0 KV buffer size =     0.00 MiB
0.00.040.002 I llama_kv_cache: size = 2176.00 MiB ( 65536 cells,  16 layers,  1/1 seqs), K (q8_0): 1088.00 MiB, V (q8_0): 1088.00 MiB
0.00.040.003 I llama_memory_recurrent:      ROCm0 RS buffer size =   149.62 MiB
0.00.040.004 I sched_reserve:      ROCm0 compute buffer size =   400.28 MiB
"""
REAL = """\
0.00.339.100 I load_tensors:   CPU_Mapped model buffer size =   322.07 MiB
0.00.339.101 I load_tensors:      ROCm0 model buffer size =  6539.67 MiB
0.00.340.000 I llama_context: n_seq_max             = 1
0.00.340.000 I llama_context:  ROCm_Host  output buffer size =     0.95 MiB
0.00.340.001 I llama_kv_cache:      ROCm0 KV buffer size =  2176.00 MiB
0.00.340.002 I llama_kv_cache: size = 2176.00 MiB ( 65536 cells,  16 layers,  1/1 seqs), K (q8_0): 1088.00 MiB, V (q8_0): 1088.00 MiB
0.00.340.003 I llama_memory_recurrent:      ROCm0 RS buffer size =   149.62 MiB
0.00.340.004 I llama_memory_recurrent: size =  149.62 MiB (     1 cells,  64 layers,  1 seqs  0 rs_seq), R (f32):    5.62 MiB, S (f32):  144.00 MiB, P (f32):    0.00 MiB
0.00.340.005 I sched_reserve:      ROCm0 compute buffer size =   410.28 MiB
0.00.340.006 I sched_reserve:  ROCm_Host compute buffer size =    84.28 MiB
0.00.341.000 I srv    load_model: initializing, n_slots = 1, n_ctx_slot = 65536, kv_unified = 'false'
"""


def jsonl(text: str) -> str:
    return "\n".join(
        json.dumps({"type": "log", "time": 1, "level": "info", "msg": line.split(" I ", 1)[1] + "\n"})
        for line in text.splitlines()
    )


SHAPES = {
    "plain": FITTING + REAL,
    "compose": "\n".join(f"haloforge-1  | {line}" for line in (FITTING + REAL).splitlines()),
    "router": "\n".join(f"[48213] {line}" for line in (FITTING + REAL).splitlines()),
    "events": "\n".join(f"data: {line}" for line in (FITTING + REAL).splitlines()),
    "no stamps": "\n".join(line.split(" I ", 1)[1] for line in (FITTING + REAL).splitlines()),
    "jsonl": jsonl(FITTING + REAL),
    "started twice": "system_info: n_threads = 1\n" + FITTING + REAL + "system_info: n_threads = 1\n" + FITTING + REAL,
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_the_last_real_load_counts_once(shape: str) -> None:
    found = log.parse(SHAPES[shape])
    sums = log.totals(found)
    assert sums.weights_device == 6539.67
    assert sums.weights_host == 322.07
    assert sums.kv == 2176.00
    assert sums.state == 149.62
    assert sums.compute_device == 410.28
    assert sums.compute_host == 84.28
    assert (found.slots, found.slot_context, found.unified) == (1, 65536, False)


def test_default_verbosity_is_not_measured_and_not_zero() -> None:
    found = log.parse("0.00.1 I srv    load_model: loading model 'm.gguf'\n0.00.2 I main: model loaded\n")
    assert not found.measured
    assert log.totals(found).kv is None
    assert log.totals(found).compute_device is None
    assert not log.parse("").measured


def test_a_draft_context_on_the_same_model_is_added() -> None:
    draft = """\
0.00.350.000 I llama_context: n_seq_max             = 1
0.00.350.001 I llama_kv_cache:      ROCm0 KV buffer size =   128.00 MiB
0.00.350.003 I sched_reserve:      ROCm0 compute buffer size =    60.00 MiB
0.00.350.004 I sched_reserve:      ROCm0 compute buffer size =    64.00 MiB
"""
    sums = log.totals(log.parse(FITTING + REAL + draft))
    assert sums.kv == 2304.00
    assert sums.compute_device == 474.28, "a context that reserves again replaces its buffer"


def test_a_draft_model_with_a_path_of_its_own_is_added() -> None:
    def load(path: str, weights: float, kv: float) -> str:
        return f"""\
llama_model_loader: loaded meta data with 3 key-value pairs and 5 tensors from {path} (version GGUF V3 (latest))
load_tensors:      ROCm0 model buffer size = {weights:8.2f} MiB
llama_context: n_seq_max             = 1
llama_kv_cache:      ROCm0 KV buffer size = {kv:8.2f} MiB
sched_reserve:      ROCm0 compute buffer size =    10.00 MiB
"""

    text = load("a.gguf", 0, 0) + load("b.gguf", 0, 0) + load("a.gguf", 100, 40) + load("b.gguf", 7, 2)
    sums = log.totals(log.parse(text))
    assert (sums.weights_device, sums.kv, sums.compute_device) == (107.0, 42.0, 20.0)


def test_kinds_of_cache_are_told_apart() -> None:
    text = """\
load_tensors:        CPU model buffer size =   100.00 MiB
llama_kv_cache_iswa: creating non-SWA KV cache, size = 65536 cells
llama_kv_cache:        CPU KV buffer size =  2304.00 MiB
llama_kv_cache: size = 2304.00 MiB ( 65536 cells,  18 layers,  4/1 seqs), K (f16): 1152.00 MiB, V (f16): 1152.00 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = 1024 cells
llama_kv_cache:        CPU KV buffer size =    36.00 MiB
llama_kv_cache: size =   36.00 MiB (  1024 cells,  18 layers,  4/1 seqs), K (f16):   18.00 MiB, V (f16):   18.00 MiB
operator(): creating indexer KV cache, size = 65536 cells
llama_kv_cache:        CPU KV buffer size =    51.00 MiB
llama_kv_cache: size =   51.00 MiB ( 65536 cells,  12 layers,  4/1 seqs), K (q8_0):   51.00 MiB, V (q8_0):    0.00 MiB
"""
    (load,) = log.parse(text).loads
    (context,) = load.contexts
    kinds: tuple[log.CacheKind, ...] = ("kv_cache", "kv_cache_swa", "indexer_cache")
    assert [context.cache_mib(kind) for kind in kinds] == [2304.0, 36.0, 51.0]
    assert context.cells == {"kv_cache": 65536, "kv_cache_swa": 1024, "indexer_cache": 65536}


def test_device_names_of_every_kind() -> None:
    text = """\
load_tensors: Meta(ROCm0,ROCm1) model buffer size =   10.00 MiB
load_tensors: RPC0[192.168.1.2:50052] model buffer size =   20.00 MiB
load_tensors:   CPU_REPACK model buffer size =    5.00 MiB
load_tensors:    ROCm_Host model buffer size =    3.00 MiB
load_tensors:      Vulkan0 model buffer size =   40.00 MiB
"""
    sums = log.totals(log.parse(text))
    assert (sums.weights_device, sums.weights_host) == (70.0, 8.0)


def test_the_engines_breakdown_is_read() -> None:
    row = {"kind": "host", "name": "Host", "self": 43, "model": 13, "context": 6, "compute": 23}
    line = json.dumps({"type": "fit_memory_breakdown", "data": {"unit": "MiB", "rows": [row]}})
    (rows,) = log.parse(line).breakdowns
    assert (rows[0].model, rows[0].context, rows[0].compute) == (13.0, 6.0, 23.0)


def test_checkpoints_are_collected() -> None:
    line = (
        "slot create_check: id  0 | task 0 | created context checkpoint 1 of 32 "
        "(pos_min = 85, pos_max = 85, n_tokens = 86, size = 112.571 MiB)"
    )
    assert log.parse(f"{line}\n{line}").checkpoints_mib == (112.571, 112.571)


def test_case_23_a_failed_allocation_is_named_and_no_crash() -> None:
    text = """\
load_tensors:      ROCm0 model buffer size =  6539.67 MiB
llama_kv_cache: size = 2048.00 MiB ( 32768 cells,  16 layers,  1/1 seqs), K (f16): 1024.00 MiB, V (f16): 1024.00 MiB
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 2048.00 MiB on device 0: cudaMalloc failed: out of memory
alloc_tensor_range: failed to allocate ROCm0 buffer of size 2147483648
"""
    assert log.failure(log.parse(text)) == "out of device memory: KV 2048 MiB on ROCm0"
    assert log.failure(log.parse(REAL)) == ""
    only = "alloc_tensor_range: failed to allocate ROCm0 buffer of size 2147483648"
    assert log.failure(log.parse(only)) == "out of device memory: 2048 MiB on ROCm0"
