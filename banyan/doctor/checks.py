"""Checks that rules are made of: levels and trends of a series, each with its evidence."""

import math
from collections.abc import Callable

from banyan.doctor.series import Evidence, Measured, Series, Thirds

Found = tuple[Evidence, ...]
Check = Callable[[Series], Found | None]
TAIL = 5.0
BEST_OF_MANY = 3.0  # standard errors that the best of many windows may lie higher by chance
LOST = 0.2  # share of the best reward whose loss is a collapse


def above(name: str, limit: float, over: int = 10) -> Check:
    """Hold where the newest values are above a limit, on average."""

    def check(series: Series) -> Found | None:
        level = series.level(name, over)
        return (_limited(level, limit),) if level and level.value > limit else None

    return check


def below(name: str, limit: float) -> Check:
    """Hold where the newest values are below a limit, on average."""

    def check(series: Series) -> Found | None:
        level = series.level(name)
        return (_limited(level, limit),) if level and level.value < limit else None

    return check


def either(*checks: Check) -> Check:
    """Hold where any check does, with the evidence of those that hold."""

    def check(series: Series) -> Found | None:
        return tuple(evidence for check in checks for evidence in check(series) or ()) or None

    return check


def every(*checks: Check) -> Check:
    """Hold where all checks do, with the evidence of all."""

    def check(series: Series) -> Found | None:
        results = [check(series) for check in checks]
        if not all(results):
            return None
        return tuple(evidence for result in results for evidence in result or ())

    return check


def unless(check: Check, other: Check) -> Check:
    """Hold where a check does and another, which explains more, does not."""
    return lambda series: None if other(series) else check(series)


def never(name: str) -> Check:
    """Hold where a metric was 0 in every step."""

    def check(series: Series) -> Found | None:
        whole = series.level(name, over=len(series.steps))
        return (whole,) if whole and whole.value == 0.0 else None

    return check


def grows(name: str, by: float) -> Check:
    """Hold where the newest values are many times the first ones."""

    def check(series: Series) -> Found | None:
        windows = series.windows(name)
        if len(windows) < 2 or windows[-1].mean < by * windows[0].mean:
            return None
        first, last = windows[0], windows[-1]
        return (
            Evidence(
                name, last.mean, first.first, last.last, was=first.mean, limit=by * first.mean
            ),
        )

    return check


def collapses(name: str) -> Check:
    """Hold where the newest values lie below the best earlier ones by a fifth and beyond chance."""

    def check(series: Series) -> Found | None:
        windows = series.windows(name)
        if len(windows) < 2:
            return None
        *before, last = windows
        best = max(before, key=lambda window: window.mean)
        noise = BEST_OF_MANY * math.hypot(best.error, last.error)
        if best.mean - last.mean <= max(noise, LOST * abs(best.mean)):
            return None
        return (Evidence(name, last.mean, best.first, last.last, was=best.mean),)

    return check


def vanishes(name: str, to: float, floor: float) -> Check:
    """Hold where the newest values are next to nothing: at most this share of the first ones, and
    below a floor."""

    def check(series: Series) -> Found | None:
        windows = series.windows(name)
        if len(windows) < 2 or not windows[-1].mean < min(floor, to * windows[0].mean):
            return None
        first, last = windows[0], windows[-1]
        return (Evidence(name, last.mean, first.first, last.last, was=first.mean, limit=floor),)

    return check


def _limited(level: Evidence, limit: float) -> Evidence:
    return Evidence(level.metric, level.value, level.first, level.last, limit=limit)


def _trend(name: str, holds: Callable[[Thirds], bool]) -> Check:
    def check(series: Series) -> Found | None:
        thirds = series.thirds(name)
        return (thirds.evidence,) if thirds and holds(thirds) else None

    return check


def rises(name: str, by: float = 0.0) -> Check:
    """Hold where the curve rises beyond its noise, and by this share at least."""
    return _trend(name, lambda t: t.rises and t.last >= (1.0 + by) * t.first)


def falls(name: str, to: float = 1.0) -> Check:
    """Hold where the curve falls steadily beyond its noise, to this share at most."""
    return _trend(name, lambda t: t.falls and t.steady and t.last <= to * t.first)


def stalls(name: str) -> Check:
    """Hold where the curve does not rise."""
    return _trend(name, lambda t: not t.rises)


def long_tail(series: Series) -> Found | None:
    """Hold where the longest completions are many times as long as the median one."""
    long, middle = series.level("completion_tokens_p99"), series.level("completion_tokens_median")
    if not long or not middle or long.value <= TAIL * max(1.0, middle.value):
        return None
    return _limited(long, TAIL * max(1.0, middle.value)), middle


def held_out_falls(series: Series) -> Found | None:
    """Hold where the newest evaluation is below the best earlier one, beyond chance."""
    if len(series.held_out) < 2:
        return None
    *before, now = series.held_out
    best = max(before, key=lambda m: m.reward)
    if best.reward - now.reward <= _chance(best, now, series.level("reward_std")):
        return None
    return (Evidence("held_out_reward", now.reward, best.step, now.step, was=best.reward),)


def _chance(a: Measured, b: Measured, spread: Evidence | None) -> float:
    """Return two standard errors of a difference of mean rewards.

    The variance of a reward is at most m(1 − m) where rewards lie in 0..1. They may have any scale,
    so it is at least that of the newest batches.

    spread: standard deviation of the rewards of a batch, in its newest steps
    """
    least = max(0.01, spread.value**2 if spread else 0.0)
    variances = [max(least, m.reward * (1.0 - m.reward)) / max(1, m.n) for m in (a, b)]
    return 2.0 * math.sqrt(sum(variances))
