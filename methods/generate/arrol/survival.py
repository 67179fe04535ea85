"""Survival rule of arrol: a fixed number of survivors, balanced between right and wrong.

With p_i the chance that rollout i will be right and p̄ its mean over the group, K the share that is
kept and ρ the desired share of right ones (Xu et al. 2026, ARRoL, arXiv 2603.24840): q⁺ = min(1,
Kρ/p̄), q⁻ = min(1, K(1−ρ)/(1−p̄)), and rollout i survives with probability s_i = p_i·q⁺ +
(1−p_i)·q⁻. Σ s_i = Kn if neither minimum is 1. The survivors are drawn by systematic sampling:
their number is fixed, and each has exactly its s_i.
"""

import math
from collections.abc import Sequence


def chances(right: Sequence[float], keep: float, share: float) -> list[float]:
    """Return s of each rollout; K if all are sure to be right, or to be wrong."""
    mean = sum(right) / len(right)
    if not 0.0 < mean < 1.0:
        return [keep] * len(right)
    up, down = min(1.0, keep * share / mean), min(1.0, keep * (1.0 - share) / (1.0 - mean))
    return [p * up + (1.0 - p) * down for p in right]


def fitted(chances: Sequence[float], count: int) -> list[float]:
    """Return chances in the same proportions that sum to `count`.

    A chance is at most 1; the others make up for the excess.
    """
    scaled = [1.0] * len(chances)
    free = list(range(len(chances)))
    while free and (left := count - (len(chances) - len(free))) > 0:
        scale = left / sum(chances[i] for i in free)
        sure = [i for i in free if chances[i] * scale >= 1.0]
        if not sure:
            for i in free:
                scaled[i] = chances[i] * scale
            return scaled
        free = [i for i in free if i not in sure]
    for i in free:
        scaled[i] = 0.0
    return scaled


def drawn(chances: Sequence[float], right: Sequence[float], u: float) -> list[int]:
    """Return the indices of the survivors, for u in [0, 1): as many as the chances sum to.

    Rollouts lie side by side in order of p, each as wide as its chance; those over u, u + 1, …
    survive. So neighbours in p share a draw, and the mixture varies less than with independent
    draws.
    """
    count = round(math.fsum(chances))
    at = 0.0
    kept: list[int] = []
    for i in sorted(range(len(chances)), key=lambda i: (right[i], i)):
        at += chances[i]
        if len(kept) < count and u + len(kept) < at:
            kept.append(i)
    return sorted(kept if len(kept) == count else _filled(kept, chances, count))


def _filled(kept: list[int], chances: Sequence[float], count: int) -> list[int]:
    """Add the survivors that rounding of the last digit left out."""
    rest = sorted((i for i in range(len(chances)) if i not in kept), key=lambda i: -chances[i])
    return kept + rest[: count - len(kept)]


def survivors(candidates: int, ended: int, keep: float, least: int = 2) -> int:
    """Return the number of running rollouts to keep.

    It is a share K of them, and at least `least` paths in all if there are as many.
    """
    return min(candidates, max(math.floor(keep * candidates + 0.5), least - ended))
