"""dots: groups of informative difficulty, neither all right nor all wrong.

Paper: Sun et al. 2025, DOTS + RR, arXiv 2506.05316
Formula: uniform over groups whose rewards differ

The published code draws from all of the buffer, although its log reports that groups with a reward
of all 0 or all 1 are left out; they have no gradient, so here they are. The buffer is first in,
first out, and has a row's newest group only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from banyan.draws import Draws
from banyan.plugins import StoredGroup
from banyan.plugins.checks import whole
from methods.replay.recent import drawn


@dataclass(frozen=True, slots=True)
class Dots:
    """Groups whose rewards differ."""

    nearest: int = 0
    """Groups that are drawn from, those whose mean reward is nearest to the middle of the buffer's
    range; 0 for all whose rewards differ."""

    def __post_init__(self) -> None:
        whole(self, ["nearest"], 0)

    def sample(self, groups: Sequence[StoredGroup], count: int, rng: Draws) -> Sequence[str]:
        """Return ids of groups, without repetition."""
        telling = [group for group in groups if len(set(group.rewards)) > 1]
        if self.nearest and telling:
            ends = [
                reward for group in telling for reward in (min(group.rewards), max(group.rewards))
            ]
            middle = (min(ends) + max(ends)) / 2
            telling = sorted(telling, key=lambda g: (abs(_mean(g) - middle), g.ordinal))[
                : self.nearest
            ]
        return drawn(telling, count, rng)


def _mean(group: StoredGroup) -> float:
    return sum(group.rewards) / len(group.rewards)
