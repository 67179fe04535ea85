"""Shares of ets's width by score: the counts of REBASE (Wu et al. 2024, arXiv 2408.00724).

From the highest score down, c = ⌈w·e^{R/T} / S⌉; then w falls by c, and S, which starts as the sum
of all e^{R/T}, by e^{R/T}. So good candidates are rounded up at the cost of bad ones.
"""

import math
from collections.abc import Sequence

_HIGHEST = 700.0  # largest exponent for a float


def counts(
    rewards: Sequence[float], width: int, temperature: float = 0.2, slack: float = 1e-9
) -> list[int]:
    """Return the children of each candidate; their sum is the width.

    slack: excess of a share over a whole number up to which it is not rounded up. At 0, as in the
        published code, a rounding error of S makes an extra child now and then: scores .9, .8, .7
        at width 8 get 5, 2 and 2.
    """
    if width < 0 or not temperature > 0:
        raise ValueError(
            f"width must be at least 0 and temperature more than 0, got {width!r} and "
            f"{temperature!r}"
        )
    exponents = [reward / temperature for reward in rewards]
    down = max(0.0, max(exponents, default=0.0) - _HIGHEST)
    masses = [math.exp(exponent - down) for exponent in exponents]
    left = width
    total = sum(masses)
    children = [0] * len(masses)
    for i in sorted(range(len(masses)), key=lambda i: -rewards[i]):
        if left <= 0 or total <= 0:
            break
        children[i] = math.ceil(left * masses[i] / total - slack)
        left -= children[i]
        total -= masses[i]
    return children


def shares(rewards: Sequence[float], width: int, temperature: float = 0.2) -> list[float]:
    """Return O, each candidate's share of all children."""
    children = counts(rewards, width, temperature)
    return [c / sum(children) for c in children] if any(children) else [0.0] * len(children)


def width_left(
    width: int, tokens: Sequence[int], finished: Sequence[bool], most: int = 1024
) -> int:
    """Return the width that remains after finished and overlong paths are set aside, one each.

    most: tokens from which a path is overlong
    """
    aside = sum(ended or n >= most for n, ended in zip(tokens, finished, strict=True))
    return max(0, width - aside)
