"""Why an engine ended, from recorded logs of b11434."""

# ruff: noqa: E501 (recorded lines keep their width)

from __future__ import annotations

import pytest

from compose.diagnose import Ending, guard_line, last_error, reason

MISSING = """\
0.00.012.000 E gguf_init_from_file: failed to open GGUF file '/model/x.gguf' (No such file or directory)
0.00.012.010 E llama_model_load: error loading model: llama_model_loader: failed to load model from /model/x.gguf
0.00.012.020 E llama_model_load_from_file_impl: failed to load model
0.00.012.030 E srv    load_model: failed to load model, '/model/x.gguf'
0.00.012.040 E srv  llama_server: exiting due to model loading error""".splitlines()

ADAPTER = """\
0.00.031.000 E some earlier trouble that was survived
0.00.032.000 I loading
0.00.033.000 I loading
0.00.034.000 I loading
0.00.035.000 I loading
0.00.036.000 I loading
0.00.047.768 E llama_adapter_lora_init: failed to open '/nowhere.gguf': No such file or directory
0.00.047.769 E cmn  common_init_: failed to load lora adapter '/nowhere.gguf'
0.00.047.773 E cmn  common_init_: failed to create context with model '/model/trunk.gguf'
0.00.047.777 E srv    load_model: failed to create_context with model '/model/trunk.gguf'
0.00.048.000 I srv    operator(): operator(): cleaning up before exit...
0.00.051.765 E srv  llama_server: exiting due to model loading error""".splitlines()

OUT_OF_DEVICE_MEMORY = """\
0.02.000.000 I llama_kv_cache:      ROCm0 KV buffer size =  2048.00 MiB
0.02.000.001 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 2048.00 MiB on device 0: cudaMalloc failed: out of memory
0.02.000.002 E alloc_tensor_range: failed to allocate ROCm0 buffer of size 2147483648""".splitlines()


def ending(log: list[str], code: int = 1, **more: object) -> Ending:
    return Ending(
        code=code,
        oom_killed=bool(more.get("oom_killed")),
        log=log,
        host_kills=int(str(more.get("host_kills", 0))),
        guard_line=guard_line(log),
    )


def test_the_cause_is_told_and_not_its_echo() -> None:
    assert (
        last_error(MISSING)
        == "gguf_init_from_file: failed to open GGUF file '/model/x.gguf' (No such file or directory)"
    )
    assert last_error(ADAPTER).startswith("llama_adapter_lora_init: failed to open '/nowhere.gguf'")
    assert reason(ending(MISSING)).startswith("exit code 1: gguf_init_from_file")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("error: invalid argument: --bogus-flag", "--bogus-flag"),
        ('error while handling argument "-ctk": Unsupported cache type: q9_9', "q9_9"),
        ("0.00.1.2 E srv start: couldn't bind HTTP server socket, hostname: 0.0.0.0, port: 8080", "couldn't bind"),
        ("0.00.1.2 E llama_model_load: error loading model: error loading model hyperparameters: key not found in "
         "model: qwen4exp.embedding_length", "key not found"),
        ("/app/llama-server: error while loading shared libraries: libx.so: cannot open", "libx.so"),
    ],
)  # fmt: skip
def test_the_engines_own_words_are_kept(line: str, told: str) -> None:
    assert told in reason(ending(["0.00.1.1 I starting", line]))


@pytest.mark.parametrize("code", [1, 134, 139])
def test_a_crash_after_a_failed_allocation_is_out_of_memory(code: int) -> None:
    told = reason(ending(OUT_OF_DEVICE_MEMORY, code=code))
    assert told.startswith("out of memory while allocating")
    assert "ROCm0 buffer of 2048 MiB (KV cache 2048 MiB)" in told


def test_kinds_of_kills_are_told_apart() -> None:
    quiet = ["0.00.1.1 I loading"]
    assert "memory limit (cgroup)" in reason(ending(quiet, code=137, oom_killed=True))
    assert "host's out-of-memory killer" in reason(ending(quiet, code=137, host_kills=1))
    assert reason(ending(quiet, code=137)) == "killed from outside (SIGKILL)"
    guard = [*quiet, "haloforge-guard: stopped the server: MemAvailable 900 MiB is below 1024 MiB"]
    assert (
        reason(ending(guard, code=75))
        == "the memory guard stopped it: MemAvailable 900 MiB is below 1024 MiB"
    )
    assert "segmentation fault" in reason(ending(quiet, code=139))
    assert "started again" in reason(ending(quiet, code=-1))
    assert "names no error" in reason(ending([], code=3))
