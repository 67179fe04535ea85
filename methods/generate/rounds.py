"""rounds: independent samples in rounds, as control grants growth budget.

Paper: XRPO, arXiv 2510.06672, phases of its rollout allocation

A tree of depth one, as `iid` grows it, whose width is unknown when it begins: `start` (n_0)
branches from the root, then as many in all as `room.max_leaves` allows, `most` (n_max) at most.
Control decides the share of each prompt, among trees that wait with their rewards; the tree is done
when its budget is final.
"""

from dataclasses import dataclass

from banyan.plugins import Branch, checks
from methods.generate.coroutine_policy import Growing, Growth


@dataclass(frozen=True)
class Rounds(Growing):
    """Independent sampling by growth budget."""

    start: int = 4
    """n_0: leaves before control's first decision; at least 2, since a spread needs two."""
    most: int = 64
    """n_max: leaves at most, whatever the budget."""

    needs_room = True
    acts = True

    def __post_init__(self) -> None:
        checks.whole(self, ("start",), 2)
        checks.whole(self, ("most",), self.start)

    @property
    def width(self) -> int:
        """Expected number of branches; later ones are unknown."""
        return self.start

    async def grow(self, growth: Growth) -> None:
        """Sample all branches within the budget, with a leaf at each end."""
        for ordinal in range(min(self.most, max(self.start, growth.room.max_leaves or 0))):
            growth.start(growth.path(Branch(*growth.root, ordinal)))
        await growth.last_room()
