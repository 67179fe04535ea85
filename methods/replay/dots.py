"""Groups drawn from those of informative difficulty: neither all right nor all wrong (DOTS + RR, card 41).

The published code draws from all of the buffer, although its log says that groups with a reward of all 0 or all 1 are left
out; they have no gradient, so here they are. The buffer is first in, first out, and has a row's newest group only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from banyan.draws import Draws
from banyan.plugins import StoredGroup
from banyan.plugins.checks import whole
from methods.replay.recent import drawn


@dataclass(frozen=True, slots=True)
class Dots:
    """nearest: groups that are drawn from, those whose mean reward is nearest to the middle of what the buffer holds; 0 for
    all whose rewards differ."""

    nearest: int = 0

    def __post_init__(self) -> None:
        whole(self, ["nearest"], 0)

    def sample(self, groups: Sequence[StoredGroup], count: int, rng: Draws) -> Sequence[str]:
        """Without repetition."""
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
