"""Quantiles of Student's t for whole degrees of freedom, without a library.

The distribution is then a finite sum (Abramowitz & Stegun 26.7.3 and 26.7.4): with θ = atan(t/√ν),
P(|T| ≤ t) is a polynomial in sin θ, cos θ and, for odd ν, θ.
"""

import math
from functools import lru_cache

_NORMAL_FROM = 10_000  # degrees of freedom from which quantiles change by less than 1e-4
_HALVINGS = 200


def within(t: float, freedom: int) -> float:
    """Return P(|T| ≤ t) for t ≥ 0."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine2 = math.cos(angle) ** 2
    if freedom % 2:
        term, total = math.cos(angle), 0.0
        for k in range(1, (freedom - 1) // 2 + 1):
            total += term
            term *= cosine2 * 2 * k / (2 * k + 1)
        return 2 / math.pi * (angle + math.sin(angle) * total)
    term, total = 1.0, 0.0
    for k in range(1, freedom // 2 + 1):
        total += term
        term *= cosine2 * (2 * k - 1) / (2 * k)
    return math.sin(angle) * total


@lru_cache(4096)
def quantile(alpha: float, freedom: int) -> float:
    """Return t with P(|T| ≤ t) = 1 − alpha: the 1 − alpha/2 quantile."""
    if not 0.0 < alpha < 1.0 or freedom < 1:
        raise ValueError(
            f"a quantile needs 0 < alpha < 1 and freedom of at least 1, got {alpha!r} and "
            f"{freedom!r}"
        )
    freedom = min(freedom, _NORMAL_FROM)
    low, high = 0.0, 1.0
    while within(high, freedom) < 1.0 - alpha:
        high *= 2.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        low, high = (middle, high) if within(middle, freedom) < 1.0 - alpha else (low, middle)
    return high
