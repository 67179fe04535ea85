"""Branch budget of treepo: the total of a wave, and each live path's part of it."""

import math
from collections.abc import Sequence

POLICIES = (
    "fixed_avg",
    "logprob_weighted",
    "norm_logprob_weighted",
    "node_logprob_weighted",
    "inverse_logprob_weighted",
    "inverse_norm_logprob_weighted",
    "inverse_node_logprob_weighted",
)


def total(live: int, finished: int, finished_now: int, width: int, divisor: int) -> int:
    """Return B = max(P, min(W - F, d·f + d·P)).

    Paths that finished in this wave give their share to their siblings.
    """
    return max(live, min(width - finished, divisor * finished_now + divisor * live))


def split(budget: int, weights: Sequence[float] | None, live: int) -> list[int]:
    """Return the children of each live path.

    weights: None for equal parts, the last path taking the remainder; else each path gets one child
        and a part of the rest by weight, rounded by largest remainder
    """
    if weights is None:
        part = budget // live
        return [part] * (live - 1) + [budget - part * (live - 1)]
    rest = budget - live
    exact = [rest * w for w in weights]
    counts = [math.floor(x) for x in exact]
    order = sorted(range(live), key=lambda i: (counts[i] - exact[i], i))
    for i in order[: rest - sum(counts)]:
        counts[i] += 1
    return [1 + c for c in counts]


def weights(values: Sequence[float], inverse: bool, temperature: float) -> list[float]:
    """Return softmax(-(x - min x) / T): unlikely paths get more children, with `inverse` likely
    ones."""
    sign = 1.0 if inverse else -1.0
    least = min(values)
    return softmax([sign * (x - least) / temperature for x in values])


def softmax(values: Sequence[float]) -> list[float]:
    """Return exp(x) / Σ exp(x)."""
    most = max(values)
    parts = [math.exp(x - most) for x in values]
    return [p / sum(parts) for p in parts]
