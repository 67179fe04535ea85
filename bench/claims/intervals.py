"""Ratios and differences of pairs, with intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from banyan.credit.student_t import quantile


@dataclass(frozen=True)
class Pairs:
    """Geometric mean of the ratios of pairs.

    low, high: 95 % interval, by Student's t on logarithms
    """

    estimate: float
    low: float
    high: float


def pairs(first: Sequence[float], second: Sequence[float]) -> Pairs:
    """Return the ratio of first to second, over at least two pairs of positive figures."""
    logs = [math.log(a / b) for a, b in zip(first, second, strict=True)]
    mean, error = fmean(logs), stdev(logs) / math.sqrt(len(logs))
    half = quantile(0.05, len(logs) - 1) * error
    return Pairs(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def differences(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean difference of pairs, at least two, with Student's 95 % interval."""
    found = [a - b for a, b in zip(first, second, strict=True)]
    half = quantile(0.05, len(found) - 1) * stdev(found) / math.sqrt(len(found))
    return fmean(found), fmean(found) - half, fmean(found) + half
