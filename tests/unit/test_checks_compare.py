"""What counts as the same answer, and what does not: pure comparison of distributions and texts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.client import Completion, Step, parse_metrics
from checks.compare import Tolerance, distance, longest_run, split, worst
from checks.device import divergences, estimates, judge, judge_devices
from checks.room import Claim, Wrong, agree
from checks.slots import classify

STRICT = Tolerance(distance=0.02, margin=0.1)


def logs(**chances: float) -> dict[int, float]:
    """Log-probabilities of tokens a, b, c ... = 0, 1, 2 ..."""
    return {ord(name) - ord("a"): math.log(chance) for name, chance in chances.items()}


def answer(*tops: dict[int, float], tokens: tuple[int, ...] | None = None, content: str = "x") -> Completion:
    steps = tuple(Step(token=max(top, key=top.__getitem__), top=top) for top in tops)
    chosen = tokens if tokens is not None else tuple(step.token for step in steps)
    return Completion(content=content, tokens=chosen, steps=steps, slot=0, stop="limit")


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=8))
def test_a_distribution_is_at_no_distance_from_itself(weights: list[float]) -> None:
    top = {token: math.log(weight / sum(weights)) for token, weight in enumerate(weights)}
    assert distance(top, top) == 0


def test_distance_is_half_the_sum_of_differences() -> None:
    assert distance(logs(a=0.7, b=0.3), logs(a=0.4, b=0.6)) == pytest.approx(0.3)


def test_a_token_that_one_list_leaves_out_counts_from_the_least_that_is_listed() -> None:
    near = distance(logs(a=0.6, b=0.21), logs(a=0.6, c=0.2))
    assert near == pytest.approx(0.005)
    assert distance(logs(a=0.9, b=0.05), logs(c=0.9, d=0.05)) == pytest.approx(0.85)


def test_after_another_choice_the_texts_are_no_longer_compared() -> None:
    one = answer(logs(a=0.51, b=0.49), logs(a=0.9, b=0.1))
    other = answer(logs(b=0.51, a=0.49), logs(b=0.9, a=0.1))
    assert worst(one.steps, other.steps) == pytest.approx(0.02)


def test_a_split_is_told_with_how_decided_the_reference_was() -> None:
    reference = answer(logs(a=0.9, b=0.1), logs(a=0.6, b=0.4))
    left = split(reference, (0, 1))
    assert left is not None
    assert left.place == 1
    assert left.margin == pytest.approx(math.log(0.6 / 0.4))
    assert split(reference, (0, 0)) is None


@pytest.mark.parametrize("tokens", [(0,), (0, 7)])
def test_an_end_or_a_token_that_was_never_likely_is_infinitely_wrong(tokens: tuple[int, ...]) -> None:
    left = split(answer(logs(a=0.9, b=0.1), logs(a=0.6, b=0.4)), tokens)
    assert left is not None
    assert left.margin == math.inf


def test_a_close_decision_may_go_the_other_way() -> None:
    reference = answer(logs(a=0.505, b=0.495))
    agree([Claim(what="x", reference=reference, got=answer(logs(b=0.505, a=0.495)))], STRICT)


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (answer(logs(a=0.8, b=0.2)), "distributions differ"),
        (answer(logs(a=0.9, b=0.1), tokens=(1,)), "another token at place 0"),
        (answer(logs(a=0.9, b=0.1), tokens=()), "0 tokens instead of 1"),
    ],
)
def test_another_answer_is_wrong(got: Completion, words: str) -> None:
    with pytest.raises(Wrong, match=words):
        agree([Claim(what="x", reference=answer(logs(a=0.9, b=0.1)), got=got)], STRICT)


def test_answers_are_classified() -> None:
    first = answer(*[logs(a=0.9, b=0.1)] * 9, content="aaaaaaaaa")
    second = answer(*[logs(b=0.9, a=0.1)] * 9, content="bcbcbcbcb")
    references = [first, second]
    assert classify(0, first, references, 0.1) == ""
    assert classify(0, second, references, 0.1) == "the answer of prompt 2"
    assert (
        classify(1, answer(tokens=(5,) * 9, content="/////////"), references, 0.1) == "repeats one character"
    )
    assert classify(1, answer(tokens=(), content=" "), references, 0.1) == "empty"
    assert classify(1, answer(tokens=(4, 5), content="no"), references, 0.1) == "other text"


@pytest.mark.parametrize(("text", "length"), [("", 0), ("abc", 1), ("a//// b", 4), ("     ", 0)])
def test_runs_of_one_character_are_measured(text: str, length: int) -> None:
    assert longest_run(text) == length


def test_metrics_are_read_with_their_labels() -> None:
    text = '# TYPE x counter\nllamacpp:n_total 3\nllamacpp:kept_total{position="0"} 2.5\n'
    assert parse_metrics(text) == {"n_total": 3.0, 'kept_total{position="0"}': 2.5}


ROWS = """\
chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence              Δp RMS            Same top p
   1    6459.6221 ± 1466.8317       0.00558 ±    0.00373       0.00000 ±    0.00000     0.001 ±  0.000 %    100.000 ±  0.000 %
   2    4633.4000 ±  710.2389       0.00353 ±    0.00195      -0.00002 ±    0.00002     0.001 ±  0.000 %     99.500 ±  0.000 %
   3    4397.36
"""  # noqa: E501


def test_perplexity_is_read_after_each_chunk_and_a_cut_row_is_left_out() -> None:
    assert estimates("0.1 I [1]10.5,[2]9.25,[3]9.") == {1: 10.5, 2: 9.25}
    rows = divergences(ROWS)
    assert list(rows) == [1, 2]
    assert (rows[2].perplexity, rows[2].mean, rows[2].top) == (4633.4, -0.00002, 0.995)


@pytest.mark.parametrize(
    ("perplexity", "top", "kld", "good"),
    [
        (6.828, 0.99, 0.001, True),
        (1334.0, 0.99, 0.001, False),
        (6.81, 0.5, 0.001, False),
        (6.81, 1, 1, False),
    ],
)
def test_the_gpu_is_held_to_the_cpu(perplexity: float, top: float, kld: float, good: bool) -> None:
    row = f"   5 {perplexity:.4f} ± 0.1 0.0 ± 0.1 {kld:.5f} ± 0.1 0.1 ± 0.1 % {100 * top:.3f} ± 0.1 %\n"
    right = {5: 6.8056, 6: 7.0}
    if good:
        assert "GPU" in judge("CPU", right, "GPU", divergences(row))
    else:
        with pytest.raises(Wrong, match="GPU is not CPU"):
            judge("CPU", right, "GPU", divergences(row))


def test_rows_of_a_run_equal_to_the_last_bit_count() -> None:
    row = "   3 4397.3600 ± 573.1000 0.00000 ± -nan 0.00000 ± 0.00000 0.000 ± nan % 100.000 ± 0.000 %\n"
    assert divergences(row)[3].top == 1.0


def test_too_little_text_is_no_proof() -> None:
    with pytest.raises(Wrong, match="chunks"):
        judge("CPU", {1: 2.0}, "GPU", divergences(ROWS))


@pytest.mark.parametrize(
    ("held", "wanted", "good"),
    [
        (["CPU_Mapped"], "", True),
        (["ROCm0", "CPU_Mapped"], "ROCm0", True),
        (["CPU_Mapped"], "ROCm0", False),
        (["ROCm0"], "", False),
        ([], "", False),
    ],
)
def test_weights_must_be_where_they_were_asked_for(held: list[str], wanted: str, good: bool) -> None:
    if good:
        assert held[0] in judge_devices(held, wanted)
    else:
        with pytest.raises(Wrong):
            judge_devices(held, wanted)
