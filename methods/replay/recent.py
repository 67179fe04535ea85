"""Groups drawn uniformly from the buffer of the newest ones, whatever they came to (DOTS + RR, card 41: `random`)."""

from collections.abc import Sequence
from dataclasses import dataclass

from banyan.draws import Draws
from banyan.plugins import StoredGroup


@dataclass(frozen=True, slots=True)
class Recent:
    """Every group of the buffer is as likely as any other."""

    def sample(self, groups: Sequence[StoredGroup], count: int, rng: Draws) -> Sequence[str]:
        """Without repetition."""
        return drawn(groups, count, rng)


def drawn(groups: Sequence[StoredGroup], count: int, rng: Draws) -> list[str]:
    """Ids of at most `count` groups, each as likely as any other. A group's number depends on nothing but the group."""
    number = {group.group_id: rng.uniform("replay", group.group_id.encode()) for group in groups}
    return sorted(number, key=lambda group_id: (number[group_id], group_id))[:count]
