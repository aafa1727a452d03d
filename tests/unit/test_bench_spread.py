"""Ratios must say what the samples allow, and no more."""

from __future__ import annotations

import math
import random

import pytest

from bench.spread import difference, ratio, spread, student


def pairs(true_ratio: float, noise: float, count: int, seed: int) -> tuple[list[float], list[float]]:
    """Interleaved samples that share a drift, as a machine that warms up gives them."""
    dice = random.Random(seed)
    a, b = [], []
    for turn in range(count):
        drift = 100 * (1 + 0.02 * turn)
        a.append(drift * math.exp(dice.gauss(0, noise)))
        b.append(drift * true_ratio * math.exp(dice.gauss(0, noise)))
    return a, b


def test_a_spread_is_the_median_and_the_quartiles() -> None:
    found = spread([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found is not None
    assert (found.low, found.median, found.high, found.count) == (2.0, 3.0, 4.0, 5)
    assert spread([]) is None


def test_the_interval_is_students_of_the_log_ratios() -> None:
    # Logs of the ratios are 0.1, 0.2, 0.3: mean 0.2, deviation 0.1, t(2) = 4.303, so 0.2 +- 0.24844.
    found = ratio([1.0, 1.0, 1.0], [math.exp(0.1), math.exp(0.2), math.exp(0.3)])
    assert found is not None
    assert found.value == pytest.approx(math.exp(0.2))
    assert math.log(found.low) == pytest.approx(0.2 - 4.303 * 0.1 / math.sqrt(3), abs=1e-9)
    assert math.log(found.high) == pytest.approx(0.2 + 4.303 * 0.1 / math.sqrt(3), abs=1e-9)


@pytest.mark.parametrize(
    ("freedom", "known"), [(1, 12.706), (12, 2.179), (13, 2.160), (30, 2.042), (120, 1.980)]
)
def test_students_t_is_that_of_the_tables(freedom: int, known: float) -> None:
    assert student(freedom) == pytest.approx(known, rel=2e-3)


def test_a_equal_to_b_is_seldom_called_slower() -> None:
    # A false alarm needs an interval that leaves 1 out (2.5 % on that side) and 3 % of distance.
    verdicts = [ratio(*pairs(1.0, 0.02, 7, seed)).verdict for seed in range(400)]  # type: ignore[union-attr]
    assert verdicts.count("regression") <= 400 * 0.025 * 1.8


def test_a_tenth_slower_is_found_nearly_always() -> None:
    verdicts = [ratio(*pairs(0.9, 0.02, 7, seed)).verdict for seed in range(200)]  # type: ignore[union-attr]
    assert verdicts.count("regression") >= 196
    assert "gain" not in verdicts


def test_swapping_a_and_b_mirrors_the_verdict() -> None:
    a, b = pairs(0.9, 0.01, 5, 1)
    there, back = ratio(a, b), ratio(b, a)
    assert there is not None
    assert back is not None
    assert there.value == pytest.approx(1 / back.value)
    assert (there.verdict, back.verdict) == ("regression", "gain")


@pytest.mark.parametrize("noise", [0.3, 0.5])
def test_noise_is_called_uncertain(noise: float) -> None:
    verdicts = {ratio(*pairs(0.96, noise, 3, seed)).verdict for seed in range(20)}  # type: ignore[union-attr]
    assert "same" not in verdicts
    assert "uncertain" in verdicts


def test_too_little_to_say_anything() -> None:
    assert ratio([1.0], [2.0]) is None
    assert ratio([1.0, 0.0], [2.0, 2.0]) is None
    assert difference([1.0], [2.0, 3.0]) is None


def test_welchs_interval_of_unpaired_samples() -> None:
    # Logs 0, 0.2 against 1, 1.4: means 0.1 and 1.2, variances 0.02 and 0.08, halves 0.01 and 0.04;
    # freedom 0.05^2 / (0.01^2 + 0.04^2) = 1.47, rounded down to 1, t = 12.706.
    found = difference([1.0, math.exp(0.2)], [math.exp(1.0), math.exp(1.4)])
    assert found is not None
    reach = 12.706 * math.sqrt(0.05)
    assert [math.log(end) for end in found] == pytest.approx([1.1, 1.1 - reach, 1.1 + reach])


def test_unpaired_samples_have_an_interval_that_holds_the_truth() -> None:
    dice = random.Random(3)
    held = 0
    for _ in range(200):
        a = [math.exp(dice.gauss(3.0, 0.03)) for _ in range(3)]
        b = [math.exp(dice.gauss(3.2, 0.06)) for _ in range(3)]
        found = difference(a, b)
        assert found is not None
        held += found[1] <= math.exp(0.2) <= found[2]
    assert held >= 184, "95 % of 200, less three deviations"


def test_equal_samples_differ_by_nothing() -> None:
    assert difference([2.0, 2.0], [3.0, 3.0]) == pytest.approx((1.5, 1.5, 1.5))
