"""recent: groups drawn uniformly from the buffer of the newest ones.

Paper: Sun et al. 2025, DOTS + RR, arXiv 2506.05316: `random`
Formula: uniform over the buffer
"""

from collections.abc import Sequence
from dataclasses import dataclass

from banyan.draws import Draws
from banyan.plugins import StoredGroup


@dataclass(frozen=True, slots=True)
class Recent:
    """All groups of the buffer, equally likely."""

    def sample(self, groups: Sequence[StoredGroup], count: int, rng: Draws) -> Sequence[str]:
        """Return ids of groups, without repetition."""
        return drawn(groups, count, rng)


def drawn(groups: Sequence[StoredGroup], count: int, rng: Draws) -> list[str]:
    """Return ids of at most `count` groups, equally likely.

    A group's number depends on nothing but the group.
    """
    number = {group.group_id: rng.uniform("replay", group.group_id.encode()) for group in groups}
    return sorted(number, key=lambda group_id: (number[group_id], group_id))[:count]
