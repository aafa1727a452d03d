"""`bench.ubatch`: what `-ub` does to the compute buffer, to prompt and decode speed, and to waiting.

The compute buffer comes from the start-up log, prompt and decode speed at depth from the image's own
llama-bench (which sees neither HTTP nor slots), time to first token and the speed a client sees from the
server. A point with `-b` below `-ub` shows the clamp (BATCHING.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench import load, texts
from bench.servers import ask
from bench.spread import spread
from bench.sweep import Live, Outcome, PointFailed, Step, Subject
from errors import BadInput
from presets.schema import Preset

UBATCHES: Final = (2048, 1024, 512, 256, 128, 64)
QUICK_UBATCHES: Final = (512, 256, 128, 64)
CLAMP: Final = {"batch": 64, "ubatch": 512}
DEPTHS: Final = (4096, 16384, 65536)
"""Tokens of context already filled, beside none; those a preset has no room for are left out."""
QUICK_DEPTH: Final = 512
PROMPT: Final = 2048
QUICK_PROMPT: Final = 512
DECODE: Final = 64
QUICK_DECODE: Final = 16


def steps(subject: Subject, *, quick: bool, ubatches: Sequence[int] | None = None) -> list[Step]:
    """One point per ubatch (the batch is raised to it where the preset's is smaller), and the clamp."""
    if not subject.starts:
        return [Step(settings={"ubatch": "as served"}, measure=_served)]
    preset = subject.changed({})
    sizes = ubatches or (QUICK_UBATCHES if quick else UBATCHES)
    pairs = [{"batch": max(preset.batch, size), "ubatch": size} for size in sizes]
    # A batch below the ubatch contradicts a preset; the engine clamps, so the pair is made past the check.
    return [_step(pair, subject, quick) for pair in [*pairs, CLAMP]]


def _step(pair: Mapping[str, int], subject: Subject, quick: bool) -> Step:
    return Step(
        settings=dict(pair), changes=dict(pair), unchecked=pair["batch"] < pair["ubatch"], measure=_measure,
        alone=lambda preset: _llama_bench(subject, preset, quick),
    )  # fmt: skip


def _measure(live: Live) -> Outcome:
    """What a client sees; the prompt is as long as llama-bench's."""
    prompt, decode, repeats = workload(live.quick)
    prompt = min(prompt, live.says.slot_context - decode - 8)
    samples = [_request(live, prompt, decode, turn) for turn in range(repeats)]
    return Outcome(measured=_middles(samples), samples=samples)


def workload(quick: bool) -> tuple[int, int, int]:
    """Tokens of the prompt, tokens generated, repetitions."""
    return (QUICK_PROMPT, QUICK_DECODE, 2) if quick else (PROMPT, DECODE, 5)


def _served(live: Live) -> Outcome:
    prompt = min(QUICK_PROMPT, live.says.slot_context - DECODE - 8)
    samples = [_request(live, prompt, DECODE, turn) for turn in range(3)]
    return Outcome(measured=_middles(samples), samples=samples)


def _middles(samples: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The median of each kind of figure, depth in its name where there is one."""
    grouped: dict[str, list[float]] = {}
    for sample in samples:
        depth = f"_d{sample['depth']}" if "depth" in sample else ""
        for name in ("ttft_s", "prompt_tps", "decode_tps"):
            if sample.get(name) is not None:
                grouped.setdefault(name + depth, []).append(float(sample[name]))
    found = {name: spread(values) for name, values in grouped.items()}
    return {name: middle.median for name, middle in found.items() if middle is not None}


def _request(live: Live, prompt: int, decode: int, turn: int) -> dict[str, Any]:
    """One request with a prompt of exactly `prompt` tokens that no cache knows."""
    body = {
        "prompt": texts.tokens(prompt, seed=7000 + turn, vocabulary=vocabulary(live)),
        "n_predict": decode, "ignore_eos": True, "cache_prompt": False, "temperature": 0,
    }  # fmt: skip
    answer = live.fire([load.Ask(name=f"turn {turn}", body=body, chat=False)]).answers[0]
    if answer.timings.get("prompt_n") != prompt:
        raise PointFailed(
            "the server read another prompt than it was sent",
            why=f"{answer.timings.get('prompt_n'):g} tokens instead of {prompt}",
        )
    return {
        "source": "server", "ttft_s": answer.ttft_s, "prompt_tps": answer.timings["prompt_per_second"],
        "decode_tps": answer.decode_rate, "prompt_n": prompt, "predicted_n": answer.tokens,
    }  # fmt: skip


def vocabulary(live: Live) -> int:
    """Size of the model's vocabulary as `/v1/models` reports it."""
    models = ask(live.server, "/v1/models")
    return int(models["data"][0].get("meta", {}).get("n_vocab") or 1000)


def _llama_bench(subject: Subject, preset: Preset, quick: bool) -> Outcome:
    assert subject.launcher is not None
    assert subject.files is not None
    prompt, decode, repeats = workload(quick)
    deeper = [QUICK_DEPTH] if quick else [depth for depth in DEPTHS if depth < preset.ctx]
    depths = [0, *(deeper or [preset.ctx // 2])]
    words = [
        "--n-prompt", str(prompt), "--n-gen", str(decode), "--n-depth", ",".join(map(str, depths)),
        "--batch-size", str(preset.batch), "--ubatch-size", str(preset.ubatch),
        "--cache-type-k", preset.cache_type_k, "--cache-type-v", preset.cache_type_v,
        "--flash-attn", preset.flash_attn, "--load-mode", preset.load_mode, "--lazy-mode", preset.lazy_mode,
        "--repetitions", str(repeats), "--output", "json",
    ]  # fmt: skip
    words += ["--threads", str(preset.threads)] if (preset.threads or 0) > 0 else []
    words += ["--n-gpu-layers", preset.gpu_layers] if preset.gpu_layers.isdigit() else []
    samples = parse_llama_bench(subject.launcher.tool("llama-bench", words, preset, subject.files))
    return Outcome(measured=_middles(samples), samples=samples)


def parse_llama_bench(text: str) -> list[dict[str, Any]]:
    """The single samples of `llama-bench -o json`, each with its depth.

    Raises:
        BadInput: the text is not what llama-bench prints.
    """
    try:
        rows = json.loads(text[text.index("[") :])
        return [
            {
                "source": "llama-bench",
                "depth": int(row["n_depth"]),
                ("prompt_tps" if row["n_prompt"] else "decode_tps"): float(rate),
                "build": int(row["build_number"]),
                "backend": str(row["backends"]),
            }
            for row in rows
            for rate in row["samples_ts"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput("llama-bench printed no results", why=f"{error}; it said: {text[-200:]!r}") from error
