"""Forecast of the mean time of a run's coming steps, from those that are over. Pure.

The time of a step has a part that depends on its work, the tokens that the learner computes, and
work has a trend: a batch in which all answers are right teaches nothing. So work is forecast by its
trend, and the time by the work, as far as the past times followed it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_WARM_UP = 2  # first steps of a run, which are left out once there are enough others
_FEWEST = 3  # steps that a mean needs: one may have written a checkpoint, or waited for a long path
# Of the forecast. Chosen among a dozen by the runs of tests/cli/live/recorded_runs.py; values near
# them do about as well.
_LEVEL, _TREND, _DAMPING = 0.2, 0.3, 0.9
_LEAST = 0.1  # share of the mean time below which no forecast goes


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps that came one after the other.

    count: how many.
    seconds: time of all of them.
    work: tokens that the learner computed for all of them; 0 if unknown.
    """

    count: int
    seconds: float
    work: float = 0.0


def per_step(over: Sequence[Steps], coming: int) -> float:
    """Return the forecast mean time of so many coming steps. There must be some that are over."""
    if len(over) >= _WARM_UP + _FEWEST:
        over = over[_WARM_UP:]
    count = sum(steps.count for steps in over)
    seconds = sum(steps.seconds for steps in over) / count
    work = sum(steps.work for steps in over) / count
    change = trend([steps.work / steps.count for steps in over], coming) - work
    return max(_LEAST * seconds, seconds + _slope(over, seconds, work) * change)


def trend(values: Sequence[float], coming: int) -> float:
    """Return the forecast mean of so many coming values, none below 0.

    Exponential smoothing with a damped trend (Gardner and McKenzie 1985, Management Science 31).
    """
    level, slope = values[0], 0.0
    for value in values[1:]:
        expected = level + _DAMPING * slope
        risen = _LEVEL * value + (1 - _LEVEL) * expected - level
        level, slope = level + risen, _TREND * risen + (1 - _TREND) * _DAMPING * slope
    total, reach = 0.0, 0.0
    for ahead in range(1, coming + 1):
        reach += _DAMPING**ahead
        total += max(0.0, level + reach * slope)
    return total / coming if coming else level


def _slope(over: Sequence[Steps], seconds: float, work: float) -> float:
    """Return the seconds that one unit of work takes, times the share of times that it explains.

    That share (adjusted R², which of few steps is low) keeps noise out: on a busy machine times
    vary and work has little to do with it.
    """
    pairs = [(s.work / s.count - work, s.seconds / s.count - seconds) for s in over]
    of_work = sum(w * w for w, _ in pairs)
    of_time = sum(t * t for _, t in pairs)
    both = sum(w * t for w, t in pairs)
    if not of_work or not of_time or both <= 0 or len(over) < _FEWEST:
        return 0.0
    unexplained = 1 - both * both / (of_work * of_time)
    explained = 1 - unexplained * (len(over) - 1) / (len(over) - 2)
    most = seconds / work if work else 0.0  # all of the time is for work
    return min(both / of_work, most) * max(0.0, explained)
