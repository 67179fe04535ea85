"""dart: fewer rollouts where most succeed, and no longer than the longest success.

Paper: DART-GUI, arXiv 2509.23866
Formula: N(s) = N up to s = 0.6, else max(2, ⌈N(1 − s) / 0.4⌉)
Left out: the published function of s, which is unknown (only its fall from 8 to about 5)

Rows come in the order of `uniform`. s is the success rate in the row's newest group, and N(s) the
rollouts of its next one. A path may hold as many tokens as the longest success that the row ever
had; a row without one has the recipe's limit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from banyan.draws import Draws
from banyan.plugins import Allocation, Budget, PromptStats, RowStats, checks
from banyan.plugins.control import MOST_TREES
from methods.control.uniform import row_of

SETTING_OF_TREES = "trees"


@dataclass(frozen=True)
class Dart:
    """Rollouts and length by the history of the row."""

    rollouts: int = 8
    """N: rollouts of a row that is not mastered."""
    mastered: float = 0.6
    """Success rates above it get fewer."""
    least: int = 2
    """Least rollouts of a row: one has nothing to be compared with."""
    setting: str = "width"
    """Setting of the tree policy that holds the number; `trees`: the group's number of trees
    instead."""
    caps: bool = True
    """True if the longest past success bounds the length."""
    slack: float = 1.0
    """Factor of the longest success."""
    right: float = 0.5
    """Rewards of at least this are successes."""

    def __post_init__(self) -> None:
        checks.whole(self, ("rollouts", "least"), 1, MOST_TREES)
        checks.finite(self, ("mastered", "slack", "right"))
        if not isinstance(self.caps, bool):
            raise ValueError(f"caps must be true or false, got {self.caps!r}")
        if not isinstance(self.setting, str) or not self.setting:
            raise ValueError(
                f"setting must name a setting of the tree policy, or be trees, got {self.setting!r}"
            )
        if not 1 <= self.least <= self.rollouts:
            raise ValueError(f"least must lie in 1..rollouts={self.rollouts}, got {self.least!r}")
        if not 0.0 <= self.mastered < 1.0:
            raise ValueError(f"mastered must lie in [0, 1), got {self.mastered!r}")
        if self.slack < 1.0:
            raise ValueError(f"slack below 1 would cut what succeeded: {self.slack!r}")

    def allocate(self, prompts: PromptStats, budget: Budget, rng: Draws) -> Sequence[Allocation]:
        """Return the rows in their drawn order, each with the rollouts and length of its
        history."""
        rows = [row_of(len(prompts.rows), rng.seed, ordinal) for ordinal in budget.ordinals]
        return [self._allocation(row, prompts.of(row), budget.max_new_tokens) for row in rows]

    def _allocation(self, row: int, stats: RowStats, limit: int) -> Allocation:
        rate, cap = self._rate(stats), self._cap(stats, limit)
        count = self.rollouts
        if rate is not None:
            count = rollouts(rate, self.rollouts, self.mastered, self.least)
        history = "never sampled" if rate is None else f"success rate {rate:.2f}"
        why = f"{history}: {count} rollouts" + (
            f" of at most {cap} tokens, as its longest success" if cap else ""
        )
        if self.setting == SETTING_OF_TREES:
            return Allocation(row, trees=count, max_new_tokens=cap, why=why)
        return Allocation(row, settings={self.setting: count}, max_new_tokens=cap, why=why)

    def _rate(self, stats: RowStats) -> float | None:
        rewards = stats.groups[-1].rewards if stats.groups else ()
        return sum(reward >= self.right for reward in rewards) / len(rewards) if rewards else None

    def _cap(self, stats: RowStats, limit: int) -> int | None:
        if not self.caps or stats.longest_success is None:
            return None
        cap = max(1, math.ceil(stats.longest_success * self.slack))
        return cap if cap < limit else None


def rollouts(rate: float, most: int, mastered: float, least: int) -> int:
    """Return N(s), the rollouts for a success rate."""
    if rate <= mastered:
        return most
    return max(least, math.ceil(round(most * (1.0 - rate) / (1.0 - mastered), 9)))
