"""xrpo: leaves go where they narrow the confidence interval of the mean reward most.

Paper: XRPO, arXiv 2510.06672
Formula: next leaf to the largest h(n) − h(n + 1) + λ·√(ln(1 + T)/n), h(n) = t(1 − α/2, n − 1)·s/√n
Left out: the published λ, which is unknown; the novelty advantage is the estimator xrpo

For a prompt with n rewards of sample deviation s the half width is h(n). One more rollout is
expected to narrow it by h(n) − h(n + 1), s held fixed, and the bonus keeps prompts in play that
only failed or only succeeded (s = 0), where T is the number of rollouts granted so far. Leaves are
granted one at a time; n rises with each, s stays until rewards return.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from banyan.credit.student_t import quantile
from banyan.plugins import Waiting, checks


@dataclass(frozen=True)
class Xrpo:
    """Sharing of leaves by expected reduction and bonus."""

    rollouts: int = 16
    """Leaves that each prompt brings to the pot, as the paper's baseline gives every prompt."""
    phases: int = 3
    """Rounds. The first is uniform: a tree's first leaves. The others share the rest of the pot,
    each about as much."""
    bonus: float = 0.05
    """λ. 0 for none: prompts whose first rewards are equal then get nothing while others have a
    spread, at twice the error of uniform allocation in simulation; at 0.02 to 0.05 it is about
    0.9 of that."""
    alpha: float = 0.05
    """The confidence interval holds the mean with probability 1 − alpha."""

    def __post_init__(self) -> None:
        checks.whole(self, ("rollouts", "phases"), 2)
        if not 0.0 < self.alpha < 1.0:
            raise ValueError(f"alpha must lie between 0 and 1, got {self.alpha!r}")
        if not (math.isfinite(self.bonus) and self.bonus >= 0.0):
            raise ValueError(f"bonus must be a number of at least 0, got {self.bonus!r}")

    def share(self, trees: Sequence[Waiting], budget: int, most: int, given: int) -> Sequence[int]:
        """Return the number of further leaves of each tree; of equals the first gets more."""
        leaves = np.array([tree.leaves for tree in trees])
        known = np.array([max(2, len(tree.rewards)) for tree in trees])  # a spread needs two
        spread = np.array([deviation(tree.rewards) for tree in trees])
        more = np.zeros(len(trees), np.int64)
        gain = np.array(
            [s * reduction(self.alpha, int(n)) for s, n in zip(spread, known, strict=True)]
        )
        for total in range(given, given + budget):
            open_ = leaves + more < most
            if not open_.any():
                break
            priority = gain + self.bonus * math.sqrt(math.log1p(total)) / np.sqrt(known + more)
            chosen = int(np.argmax(np.where(open_, priority, -np.inf)))
            more[chosen] += 1
            gain[chosen] = spread[chosen] * reduction(self.alpha, int(known[chosen] + more[chosen]))
        return [int(n) for n in more]


def deviation(rewards: Sequence[float]) -> float:
    """Return s, the sample deviation; 0 if fewer than two rewards are known."""
    return float(np.std(rewards, ddof=1)) if len(rewards) > 1 else 0.0


def half_width(alpha: float, rollouts: int) -> float:
    """Return h(n) for a deviation of 1."""
    return quantile(alpha, rollouts - 1) / math.sqrt(rollouts)


@lru_cache(4096)
def reduction(alpha: float, rollouts: int) -> float:
    """Return h(n) − h(n + 1) for a deviation of 1."""
    return half_width(alpha, rollouts) - half_width(alpha, rollouts + 1)
