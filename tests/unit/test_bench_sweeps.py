"""The pure parts of the sweeps: what they measure, how it is summed up, what is proposed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from bench import cache, host, load_time, mtp, slots, texts, ubatch
from bench.compare import judge
from bench.results import Identity, Point
from bench.servers import last_word
from bench.sweep import duration, named
from bench.words import label, number
from errors import BadInput


def drafted(n_max: int, p_min: float, rates: dict[str, list[float]]) -> list[Point]:
    return [
        Point(
            sweep="mtp", settings={"n_max": n_max, "p_min": p_min, "kind": kind}, host={},
            identity=Identity(subject="x"),
            samples=[{"turn": turn, "decode_tps": rate} for turn, rate in enumerate(values)],
        )
        for kind, values in rates.items()
    ]  # fmt: skip


def test_the_best_setting_is_that_of_all_kinds_together() -> None:
    # n1 wins on code alone, n3 on the mean of both kinds: 30 against 28.
    points = [
        *drafted(0, 0.0, {"code": [20, 20.2, 19.8], "prose": [20, 20.2, 19.8]}),
        *drafted(1, 0.0, {"code": [33, 33.1, 32.9], "prose": [23, 23.1, 22.9]}),
        *drafted(3, 0.0, {"code": [31, 31.1, 30.9], "prose": [29, 29.1, 28.9]}),
    ]
    found = mtp.propose(points)
    assert found is not None
    assert found.n_max == 3
    assert found.decode_tps == pytest.approx(30)
    assert found.gain is not None
    assert found.gain[0] == pytest.approx(1.5, rel=1e-3)
    assert found.gain[1] > 1
    assert "more than noise" in str(found)
    assert "not more" not in str(found)


def test_a_lead_within_the_noise_is_said_to_be_one() -> None:
    points = [
        *drafted(0, 0.0, {"code": [20, 26, 23]}),
        *drafted(1, 0.0, {"code": [21, 25, 24]}),
    ]
    found = mtp.propose(points)
    assert found is not None
    assert "not more than noise" in str(found)


def test_failed_points_propose_nothing() -> None:
    point = drafted(1, 0.0, {"code": [1.0]})[0].model_copy(update={"status": "failed"})
    assert mtp.propose([point]) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Basalt. Once upon a time", "ok"),
        ("basalt and more", "ok"),
        ("Once upon a time", "code word missing"),
        ("   \n", "empty"),
        ("Basalt, said the Thistle", "cross-talk"),
        ("////" * 20, "repeats"),
    ],
)
def test_answers_under_load_are_told_apart(text: str, kind: str) -> None:
    assert slots.classify(text, "Basalt", ["Thistle", "Copper"]) == kind


def test_code_words_cannot_be_mistaken() -> None:
    words = [word.lower() for word in texts.CODEWORDS]
    assert len(set(words)) == 16
    assert not any(a in b for a in words for b in words if a != b)
    assert not any(word in texts.filler(4000, 1).lower() for word in words)


def test_users_have_texts_of_their_own() -> None:
    starts = {texts.recall(user, 200)[0].split("Remember it. ")[1][:80] for user in range(16)}
    assert len(starts) == 16
    assert texts.recall(3, 200) == texts.recall(3, 200)
    assert len(texts.filler(500, 1).split()) in range(500, 530)


def test_a_slot_summary_adds_rounds_and_takes_middles_of_users() -> None:
    samples: list[dict[str, Any]] = [
        {"round": r, "round_tokens": 60, "round_s": 2.0 + r, "decode_tps": 10.0 + u, "ttft_s": 0.5,
         "acceptance": None, "class": "ok" if u else "cross-talk"}
        for r in range(2) for u in range(3)
    ]  # fmt: skip
    found = slots.summary(samples)
    assert found["total_tps"] == pytest.approx((30 + 20) / 2)
    assert found["user_tps"] == 11
    assert found["clean_share"] == pytest.approx(4 / 6)
    assert found["mixed_up"] == 2
    assert "acceptance" not in found, "nothing drafted is not an acceptance of 0"


def test_a_cache_summary_leaves_the_first_turn_out() -> None:
    samples = [
        {"turn": 1, "hit": 0.0, "ttft_s": 20.5},
        {"turn": 2, "hit": 0.5, "ttft_s": 4.0},
        {"turn": 3, "hit": 0.9, "ttft_s": 3.0},
    ]
    found = cache.summary(samples)
    assert (found["cold_s"], found["turn_s"]) == (20.5, 3.5)
    assert found["hit_share"] == pytest.approx(0.7)


def test_llama_bench_rows_become_single_samples() -> None:
    base = {"n_depth": 512, "build_number": 11434, "backends": "CPU"}
    rows = [
        {**base, "n_prompt": 64, "n_gen": 0, "samples_ts": [100.5, 101.5]},
        {**base, "n_prompt": 0, "n_gen": 8, "samples_ts": [7.5]},
    ]
    found = ubatch.parse_llama_bench("warning: a line before\n" + json.dumps(rows))
    assert [sample.get("prompt_tps") for sample in found] == [100.5, 101.5, None]
    assert found[2]["decode_tps"] == 7.5
    assert {sample["depth"] for sample in found} == {512}


@pytest.mark.parametrize("text", ["", "error: unknown flag", "[{}]", '[{"n_depth": 0}]'])
def test_llama_bench_without_results_is_an_error(text: str) -> None:
    with pytest.raises(BadInput, match="llama-bench"):
        ubatch.parse_llama_bench(text)


def test_times_are_judged_the_other_way_round() -> None:
    a = [{"decode_tps": 100.0, "ttft_s": 1.0 + turn / 100} for turn in range(4)]
    b = [{"decode_tps": 100.0, "ttft_s": 1.2 + turn / 100} for turn in range(4)]
    found = judge(a, b)
    assert found["ttft_s"].verdict == "regression"
    assert found["decode_tps"].verdict == "same"


def test_a_figure_one_side_lacks_is_not_judged() -> None:
    a: list[dict[str, Any]] = [{"decode_tps": 1.0, "ttft_s": None}, {"decode_tps": 1.0, "ttft_s": 1.0}]
    assert list(judge(a, a)) == ["decode_tps"]


@pytest.mark.parametrize(
    ("log", "word"),
    [
        ("0.00.1 I a\n0.00.100.200 E srv    load_model: failed to load model, '/x'\n0.00.1 I b", "failed to"),
        ("one\n/src/ggml.c:12: GGML_ASSERT(x) failed\nbacktrace", "GGML_ASSERT"),
        ("error: invalid argument: --bogus\nusage", "invalid argument"),
        ("just this", "just this"),
        ("", "printed nothing"),
    ],
)  # fmt: skip
def test_the_engines_last_word(log: str, word: str) -> None:
    assert word in last_word(log)


def test_a_file_that_was_read_lies_in_the_page_cache(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"x" * 3_000_001)
    load_time.read_through(file)
    assert load_time.cached_share(file) == 1.0


def test_meminfo_is_in_bytes() -> None:
    found = host.meminfo("MemTotal:       16 kB\nMemAvailable:    3 kB\nHugePages_Total:       0\n")
    assert found == {"MemTotal": 16384, "MemAvailable": 3072}


def test_gtt_is_found_on_whatever_card_has_it(tmp_path: Path) -> None:
    for card, size in (("card0", None), ("card1", 1024)):
        device = tmp_path / card / "device"
        device.mkdir(parents=True)
        if size:
            (device / "mem_info_gtt_total").write_text(f"{size}\n")
            (device / "mem_info_gtt_used").write_text("7\n")
    assert host.gpu_memory(tmp_path) == {"gtt_total_bytes": 1024, "gtt_used_bytes": 7}


def test_the_guard_of_a_sweep_trips_once(monkeypatch: pytest.MonkeyPatch) -> None:
    falling = iter([100, 90, 40, 30, 20])
    monkeypatch.setattr(host, "available_bytes", lambda: next(falling, 10))
    calls: list[int] = []
    with host.Watch(floor=50, on_low=lambda: calls.append(1), every_s=0.001) as watch:
        end = time.monotonic() + 20
        while watch.seen.lowest > 10 and time.monotonic() < end:
            time.sleep(0.001)
    assert calls == [1]
    assert watch.tripped
    assert watch.seen.drop == 90


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (61, "1 min 01 s"), (3599, "59 min 59 s"), (7800, "2 h 10 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12\u202f346"), (20.84, "20.8"), (0.0471, "0.047"), (3, "3"), (-2.5, "\u22122.50"), (None, ""),
     (1188.4, "1188"), ("x", "x"), (0, "0")],
)  # fmt: skip
def test_numbers_for_people(value: float | str | None, text: str) -> None:
    assert number(value) == text


def test_labels_carry_their_unit() -> None:
    assert label("ttft_s") == "Time to first token (s)"
    assert label("compute_mib") == "Compute buffer (MiB)"
    assert label("out_tokens") == "Out tokens"
    assert named({"a": [1, 2], "b": (), "c": 0.5}) == "a=1,2 b=none c=0.5"
