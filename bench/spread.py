"""Medians, spreads and ratios with their confidence: pure functions over samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

REGRESSION: Final = 0.03
"""A ratio this far below 1 is called a regression (issue threshold; the seed's run-to-run noise is 3 %)."""

CONFIDENCE: Final = 0.95

Verdict = Literal["regression", "gain", "same", "uncertain"]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A median with its interquartile range, in the samples' unit."""

    median: float
    low: float
    high: float
    count: int

    @property
    def noise(self) -> float:
        """Half the interquartile range as a share of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


def spread(samples: Sequence[float]) -> Spread | None:
    """Median and quartiles; None of nothing."""
    if not samples:
        return None
    if len(samples) == 1:
        return Spread(median=samples[0], low=samples[0], high=samples[0], count=1)
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Spread(median=middle, low=low, high=high, count=len(samples))


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """B against A: the middle ratio and the interval that holds it with `CONFIDENCE`."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def verdict(self) -> Verdict:
        """What may be said when larger is better.

        A regression or gain needs both: a middle at least `REGRESSION` away from 1 and an interval that
        leaves 1 out. `same` needs the whole interval nearer to 1 than that. All else is uncertain.
        """
        if self.high < 1 and self.value <= 1 - REGRESSION:
            return "regression"
        if self.low > 1 and self.value >= 1 + REGRESSION:
            return "gain"
        if self.low > 1 - REGRESSION and self.high < 1 + REGRESSION:
            return "same"
        return "uncertain"


def ratio(a: Sequence[float], b: Sequence[float]) -> Ratio | None:
    """B over A from interleaved rounds: Student's interval of the mean log ratio of the pairs.

    Pairing takes out what drifts with time (heat, the page cache); the logarithm makes A/B and B/A
    mirror images. None below two pairs or when a sample is not positive.
    """
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x > 0 and y > 0]
    if len(pairs) < 2 or len(pairs) < len(a):
        return None
    logs = [math.log(y / x) for x, y in pairs]
    middle = statistics.fmean(logs)
    reach = student(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(
        value=math.exp(middle), low=math.exp(middle - reach), high=math.exp(middle + reach), pairs=len(logs)
    )


def difference(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float] | None:
    """B over A with the ends of Welch's interval of the log ratio, for samples that are not paired.

    None below two samples a side or when one is not positive. Few samples give a wide interval: with two a
    side Student's factor is up to 12.7.
    """
    if len(a) < 2 or len(b) < 2 or min(*a, *b) <= 0:
        return None
    first, second = ([math.log(value) for value in side] for side in (a, b))
    middle = statistics.fmean(second) - statistics.fmean(first)
    parts = [statistics.variance(side) / len(side) for side in (first, second)]
    if not sum(parts):
        return math.exp(middle), math.exp(middle), math.exp(middle)
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1))
    reach = student(max(1, int(freedom))) * math.sqrt(sum(parts))
    return math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)


_T975: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)


def student(freedom: int) -> float:
    """The 97.5 % point of Student's t; from 13 degrees on Cornish and Fisher's first terms (within 0.1 %)."""
    if freedom <= len(_T975):
        return _T975[freedom - 1]
    z = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    return float(z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2))
