"""Penalty on overlong answers, no method: DAPO (Yu et al. 2025, arXiv 2503.14476), TreePO."""

from typing import Protocol

import numpy as np

from banyan.credit.stats import Floats
from banyan.plugins import checks as shared
from methods.advantages import checks


class Settings(Protocol):
    """Settings of an estimator with the penalty.

    longest: longest answer, sampled tokens
    buffer: tokens before it in which the penalty grows
    factor: largest penalty
    """

    @property
    def longest(self) -> int: ...
    @property
    def buffer(self) -> int: ...
    @property
    def factor(self) -> float: ...


def check(settings: Settings) -> None:
    """Raise ValueError for settings out of range, or that do not go together."""
    shared.whole(settings, ("longest",), 0, 2**31)
    shared.whole(settings, ("buffer",), 0, settings.longest)
    checks.within("factor", settings.factor, 0, 1000)
    if bool(settings.longest) != bool(settings.buffer):
        raise ValueError(
            f"longest {settings.longest} and buffer {settings.buffer} need each other; 0 and 0 for"
            " no penalty"
        )


def penalty(lengths_L: Floats, longest: int, buffer: int, factor: float = 1.0) -> Floats:
    """Return the number, at most 0, that an answer's length adds to its reward."""
    over_L = (lengths_L - (longest - buffer)) / buffer
    return -np.clip(over_L, 0.0, 1.0) * factor
