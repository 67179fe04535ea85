"""Who survives when a group is pruned: so many, balanced between right and wrong (ARRoL; card 18).

With p_i the chance that rollout i will be right and p̄ its mean over the group, K the share that is kept and ρ the share of
right ones wanted among these: q⁺ = min(1, Kρ/p̄), q⁻ = min(1, K(1−ρ)/(1−p̄)), and rollout i survives with probability
s_i = p_i·q⁺ + (1−p_i)·q⁻. Σ s_i = Kn where neither minimum is 1. The survivors are drawn by systematic sampling: their
number is fixed, and each has exactly its s_i.
"""

import math
from collections.abc import Sequence


def chances(right: Sequence[float], keep: float, share: float) -> list[float]:
    """s of each rollout; K where all are sure to be right, or to be wrong."""
    mean = sum(right) / len(right)
    if not 0.0 < mean < 1.0:
        return [keep] * len(right)
    up, down = min(1.0, keep * share / mean), min(1.0, keep * (1.0 - share) / (1.0 - mean))
    return [p * up + (1.0 - p) * down for p in right]


def fitted(chances: Sequence[float], count: int) -> list[float]:
    """Chances in the same proportions that sum to `count`; what would be above 1 is 1, and the others make up for it."""
    found = [1.0] * len(chances)
    free = list(range(len(chances)))
    while free and (left := count - (len(chances) - len(free))) > 0:
        scale = left / sum(chances[i] for i in free)
        sure = [i for i in free if chances[i] * scale >= 1.0]
        if not sure:
            for i in free:
                found[i] = chances[i] * scale
            return found
        free = [i for i in free if i not in sure]
    for i in free:
        found[i] = 0.0
    return found


def drawn(chances: Sequence[float], right: Sequence[float], u: float) -> list[int]:
    """Indices of the survivors, for u in [0, 1): as many as the chances sum to.

    Rollouts lie side by side in order of p, each as wide as its chance; who lies over u, u + 1, … survives. So neighbours in
    p share what is drawn, and the mixture varies less than with independent draws.
    """
    count, at, kept = round(math.fsum(chances)), 0.0, list[int]()
    for i in sorted(range(len(chances)), key=lambda i: (right[i], i)):
        at += chances[i]
        if len(kept) < count and u + len(kept) < at:
            kept.append(i)
    return sorted(kept if len(kept) == count else _filled(kept, chances, count))


def _filled(kept: list[int], chances: Sequence[float], count: int) -> list[int]:
    """With those that rounding of the last digit left out."""
    rest = sorted((i for i in range(len(chances)) if i not in kept), key=lambda i: -chances[i])
    return kept + rest[: count - len(kept)]


def survivors(candidates: int, ended: int, keep: float, least: int = 2) -> int:
    """How many of the rollouts that go on are kept: K of them, and `least` paths in all where there are as many."""
    return min(candidates, max(math.floor(keep * candidates + 0.5), least - ended))
