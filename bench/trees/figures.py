"""Statistics of the experiment: ratios of tokens between two arms, with intervals.

A ratio is one of geometric means over seeds. Its interval is Welch's on logarithms, or, where a run
of either arm did not get there within its cap, a percentile bootstrap in which that run counts as
its cap: the ratio is then a bound, and named so. Its p is that of a permutation test: a bootstrap
of few runs draws hardly any but those that it has, and would say 0.
"""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from banyan.credit.student_t import quantile, within

DRAWS = 10_000


@dataclass(frozen=True)
class Spent:
    """What a run spent until it was accurate.

    censored: it was not within its cap, which `value` then is
    """

    value: float
    censored: bool = False


@dataclass(frozen=True)
class Ratio:
    """Ratio between two arms: above 1 the second spent less.

    low, high: 95 % interval
    p: two-sided probability of such a ratio if there were none
    exact: no run was censored
    """

    estimate: float
    low: float
    high: float
    p: float
    exact: bool


def ratio(first: Sequence[Spent], second: Sequence[Spent], alpha: float = 0.05) -> Ratio:
    """Return the ratio of what two arms spent, each over at least two seeds."""
    logs = [[math.log(run.value) for run in runs] for runs in (first, second)]
    if any(run.censored for run in (*first, *second)):
        estimate = math.exp(fmean(logs[0]) - fmean(logs[1]))
        differences = bootstrap(logs[0], logs[1], fmean)
        low, high = (math.exp(x) for x in percentiles(differences, alpha))
        return Ratio(estimate, low, high, permuted(logs[0], logs[1]), exact=False)
    difference, error, freedom = welch(logs[0], logs[1])
    if not error:
        same = math.exp(difference)
        return Ratio(same, same, same, 0.0 if difference else 1.0, exact=True)
    half = quantile(alpha, freedom) * error
    return Ratio(
        math.exp(difference),
        math.exp(difference - half),
        math.exp(difference + half),
        1.0 - within(abs(difference) / error, freedom),
        exact=True,
    )


def welch(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, int]:
    """Return the difference of means, its standard error, and degrees of freedom, rounded down."""
    parts = [variance(values) / len(values) for values in (first, second)]
    error = math.sqrt(sum(parts))
    pairs = zip(parts, (first, second), strict=True)
    below = sum(part**2 / (len(values) - 1) for part, values in pairs)
    freedom = max(1, math.floor(sum(parts) ** 2 / below)) if below else 1
    return fmean(first) - fmean(second), error, freedom


def difference(
    first: Sequence[float], second: Sequence[float], alpha: float = 0.05
) -> tuple[float, float, float]:
    """Return the difference of two means with Welch's interval: estimate, low, high."""
    estimate, error, freedom = welch(first, second)
    half = quantile(alpha, freedom) * error
    return estimate, estimate - half, estimate + half


def bootstrap(
    first: Sequence[float],
    second: Sequence[float],
    mean: Callable[[Sequence[float]], float],
    draws: int = DRAWS,
) -> list[float]:
    """Return differences of means of runs that are drawn with replacement, the same each time."""
    rng = random.Random(0)
    return [
        mean(rng.choices(first, k=len(first))) - mean(rng.choices(second, k=len(second)))
        for _ in range(draws)
    ]


def permuted(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the share of all ways to deal the runs to both arms that differ as much in means."""
    runs, count = [*first, *second], len(first)
    whole, seen, ways = math.fsum(runs), abs(fmean(first) - fmean(second)), 0
    extreme = 0
    for dealt in itertools.combinations(runs, count):
        own = math.fsum(dealt)
        apart = abs(own / count - (whole - own) / len(second))
        ways += 1
        extreme += apart >= seen - 1e-12
    return extreme / ways


def percentiles(values: Sequence[float], alpha: float) -> tuple[float, float]:
    """Return the values between which all but `alpha` of the values lie, the same on both sides."""
    ordered = sorted(values)
    cut = math.floor(len(ordered) * alpha / 2)
    return ordered[cut], ordered[-1 - cut]


def holm(probabilities: Sequence[float]) -> list[float]:
    """Return probabilities adjusted for their number, after Holm (1979)."""
    order = sorted(range(len(probabilities)), key=lambda i: probabilities[i])
    adjusted, most = [0.0] * len(probabilities), 0.0
    for rank, index in enumerate(order):
        most = max(most, min(1.0, (len(order) - rank) * probabilities[index]))
        adjusted[index] = most
    return adjusted
