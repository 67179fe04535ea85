"""Two runs side by side: results on the held-out rows, metrics of their last steps, recipes. Pure.

Intervals are of 95 %. Of an accuracy it is Wilson's, of a difference of two Newcombe's (1998,
method 10). They count answers as independent. For greedy answers of two runs to the same rows that
makes the difference's interval too wide, not too narrow. Several sampled answers to a row are
alike, so that for other rows than these the intervals of `sampled` are too narrow. Of a metric it
is Student's for the mean of its last steps, and Welch's for the difference of two, as if steps were
independent.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from banyan.credit.student_t import quantile
from banyan.progress import run_status
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data

LAST = 10  # steps that a metric's mean is over
_ALPHA = 0.05
_MISSING = "-"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval; the interval is None where n is too small for one."""

    value: float
    interval: tuple[float, float] | None
    n: int


@dataclass(frozen=True, slots=True)
class _Mean:
    """The mean of n numbers; squared: its squared standard error, None for a single number."""

    value: float
    squared: float | None
    n: int

    @property
    def estimate(self) -> Estimate:
        """The mean with Student's interval."""
        if self.squared is None:
            return Estimate(self.value, None, self.n)
        return _around(self.value, self.squared, self.n - 1, self.n)


@dataclass(frozen=True, slots=True)
class Compared:
    """A number of both runs; None for a run that has none. difference: of the second to the first,
    None unless both have one.
    """

    name: str
    first: Estimate | None
    second: Estimate | None
    difference: Estimate | None


def evaluations(first: rs.ReadProgressResponse, second: rs.ReadProgressResponse) -> list[Compared]:
    """Return the accuracies of both runs by label, or mean rewards where rewards are graded."""
    by_label = [{e.label: e for e in progress.evals if e.scored} for progress in (first, second)]
    rows = []
    graded = plain_data.graded([*first.evals, *second.evals])
    for label in sorted({*by_label[0], *by_label[1]}, key=run_status.order):
        known = [messages.get(label) for messages in by_label]
        name = f"{label} {'mean reward' if graded else 'accuracy'}"
        each = [_evaluation(message, graded) if message else None for message in known]
        rows.append(Compared(name, each[0], each[1], None if graded else newcombe(*each)))
    return rows


def _evaluation(message: rs.EvalProgress, graded: bool) -> Estimate:
    n = message.scored
    if graded:
        return Estimate(message.reward_sum / n, None, n)
    return Estimate(message.correct / n, plain_data.wilson(message.correct, n), n)


def newcombe(first: Estimate | None, second: Estimate | None) -> Estimate | None:
    """Return the difference of two shares with its interval; None if one is missing."""
    if first is None or second is None or first.interval is None or second.interval is None:
        return None
    difference = second.value - first.value
    below = math.hypot(second.value - second.interval[0], first.interval[1] - first.value)
    above = math.hypot(second.interval[1] - second.value, first.value - first.interval[0])
    return Estimate(difference, (difference - below, difference + above), min(first.n, second.n))


def metrics(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], last: int = LAST
) -> list[Compared]:
    """Return the mean of each metric over the last steps of both runs, by name."""
    both = [_means(rows[-last:]) for rows in (first, second)]
    return [
        _compared(name, both[0].get(name), both[1].get(name))
        for name in sorted({*both[0], *both[1]})
    ]


def _compared(name: str, first: _Mean | None, second: _Mean | None) -> Compared:
    estimates = [None if mean is None else mean.estimate for mean in (first, second)]
    return Compared(name, estimates[0], estimates[1], _apart(first, second))


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, _Mean]:
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if name != "step" and value is not None:
                values.setdefault(name, []).append(float(value))
    return {name: _mean(numbers) for name, numbers in values.items()}


def _mean(numbers: Sequence[float]) -> _Mean:
    n = len(numbers)
    mean = math.fsum(numbers) / n
    if n < 2:
        return _Mean(mean, None, n)
    return _Mean(mean, math.fsum((x - mean) ** 2 for x in numbers) / (n - 1) / n, n)


def _apart(first: _Mean | None, second: _Mean | None) -> Estimate | None:
    """Return the difference of two means with Welch's interval; None if one is missing."""
    if first is None or second is None:
        return None
    difference, n = second.value - first.value, min(first.n, second.n)
    if first.squared is None or second.squared is None:
        return Estimate(difference, None, n)
    squared = first.squared + second.squared
    parts = first.squared**2 / (first.n - 1) + second.squared**2 / (second.n - 1)
    freedom = int(squared**2 / parts) if parts else n - 1
    return _around(difference, squared, max(1, freedom), n)


def _around(value: float, squared: float, freedom: int, n: int) -> Estimate:
    half = quantile(_ALPHA, freedom) * math.sqrt(squared)
    return Estimate(value, (value - half, value + half), n)


def differences(first: str, second: str) -> list[tuple[str, str, str]]:
    """Return the keys in which two recipes, as JSON, differ, with both values as JSON."""
    flat = [dict(_flat("", json.loads(text))) for text in (first, second)]
    return [
        (key, flat[0].get(key, _MISSING), flat[1].get(key, _MISSING))
        for key in sorted({*flat[0], *flat[1]})
        if flat[0].get(key, _MISSING) != flat[1].get(key, _MISSING)
    ]


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), item)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from _flat(f"{name}.{index}", item)
    else:
        yield name, json.dumps(value, ensure_ascii=False, sort_keys=True)
