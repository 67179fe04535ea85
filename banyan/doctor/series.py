"""Series that a diagnosis reads: metrics of a run's steps, and results on held-out rows."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

RECENT = 10  # steps of a level
LEAST = 3  # fewest steps of a level
TREND = 12  # fewest steps of a trend
NOISE = 2.0  # standard errors that a change must exceed
CHANGE = 0.05  # share of the larger value that a change must exceed


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Metrics of one optimizer step."""

    number: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """Result on held-out rows at a step: mean reward of n answers."""

    step: int
    reward: float
    n: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """Metric over the steps first..last: its value, and its earlier value or its limit."""

    metric: str
    value: float
    first: int
    last: int
    was: float | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Thirds:
    """Means of the three thirds of a curve; `noise`: standard error of last minus first."""

    first: float
    middle: float
    last: float
    noise: float
    evidence: Evidence

    @property
    def rises(self) -> bool:
        return self._changes(self.last - self.first)

    @property
    def falls(self) -> bool:
        return self._changes(self.first - self.last)

    @property
    def steady(self) -> bool:
        """True if the middle lies between the ends, so that the change has one direction."""
        return min(self.first, self.last) <= self.middle <= max(self.first, self.last)

    def _changes(self, by: float) -> bool:
        return by > max(NOISE * self.noise, CHANGE * max(abs(self.first), abs(self.last)))


@dataclass(frozen=True, slots=True)
class Window:
    """Mean of consecutive values, its standard error, and the steps that it covers."""

    mean: float
    error: float
    first: int
    last: int


@dataclass(frozen=True)
class Series:
    """A run's steps in order, and its greedy evaluations in order of their steps."""

    steps: Sequence[StepMetrics]
    held_out: Sequence[Measured] = ()

    def level(self, name: str, over: int = RECENT) -> Evidence | None:
        """Return the mean of the newest values; None if too few."""
        values = self._curve(name)[-over:]
        if len(values) < LEAST:
            return None
        return Evidence(name, fmean(v for _, v in values), values[0][0], values[-1][0])

    def thirds(self, name: str) -> Thirds | None:
        """Return the trend of the curve; None if it is too short."""
        curve = self._curve(name)
        if len(curve) < TREND:
            return None
        n = len(curve) // 3
        parts = [[v for _, v in part] for part in (curve[:n], curve[n:-n], curve[-n:])]
        first, middle, last = (fmean(part) for part in parts)
        noise = math.sqrt(variance(parts[0]) / n + variance(parts[2]) / n)
        evidence = Evidence(name, last, curve[0][0], curve[-1][0], was=first)
        return Thirds(first=first, middle=middle, last=last, noise=noise, evidence=evidence)

    def windows(self, name: str) -> list[Window]:
        """Return all windows that do not overlap the newest one, and the newest; empty if too few.

        A window is a fifth of the curve, LEAST to RECENT consecutive values.
        """
        curve = self._curve(name)
        n = max(LEAST, min(RECENT, len(curve) // 5))
        starts = [*range(len(curve) - 2 * n + 1), len(curve) - n]
        return (
            [_window(curve[start : start + n]) for start in starts] if len(curve) >= 2 * n else []
        )

    def _curve(self, name: str) -> list[tuple[int, float]]:
        pairs = ((step.number, step.metrics.get(name, math.nan)) for step in self.steps)
        return [(number, value) for number, value in pairs if math.isfinite(value)]


def _window(part: Sequence[tuple[int, float]]) -> Window:
    values = [value for _, value in part]
    return Window(fmean(values), math.sqrt(variance(values) / len(values)), part[0][0], part[-1][0])


def series(
    steps: Iterable[tuple[int, Mapping[str, float]]], held_out: Iterable[Measured] = ()
) -> Series:
    """Return the series of steps in any order; for a duplicate step the first counts."""
    known: dict[int, Mapping[str, float]] = {}
    for number, metrics in steps:
        known.setdefault(number, metrics)
    return Series(
        [StepMetrics(n, known[n]) for n in sorted(known)], sorted(held_out, key=lambda m: m.step)
    )
