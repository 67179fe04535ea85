"""A curve as a line of block characters."""

import itertools
from collections.abc import Sequence
from statistics import fmean

_BARS = "▁▂▃▄▅▆▇█"


def curve(values: Sequence[float]) -> str:
    """Return values as a line of block characters.

    The scale is 0 to 1, or the range of the values if they lie beyond.
    """
    low, high = min(0.0, *values, 0.0), max(1.0, *values, 1.0)
    return "".join(_BARS[min(7, int((value - low) / (high - low) * 8))] for value in values)


def thinned(values: Sequence[float], most: int) -> list[float]:
    """Return at most so many values: the means of equal runs of consecutive ones."""
    count = min(len(values), most)
    ends = [len(values) * number // count for number in range(count + 1)] if count else []
    return [fmean(values[a:b]) for a, b in itertools.pairwise(ends)]
