"""rounds: independent samples, first a few and then as many as control gives room for (XRPO; card 20, phases).

A tree of depth one, as `iid` grows it, whose width is not known when it begins: `start` (n_0) branches from the root, then
as many in all as `room.max_leaves` says, `most` (n_max) at most. Which prompt gets how many is decided by control, among
trees that wait with their rewards; the tree is done when its room is final.
"""

from dataclasses import dataclass

from banyan.plugins import Branch, checks
from methods.generate.coroutine_policy import Growing, Growth


@dataclass(frozen=True)
class Rounds(Growing):
    """Independent sampling by rooms."""

    start: int = 4
    """n_0: leaves before control has said anything; at least 2, since a spread needs two."""
    most: int = 64
    """n_max: leaves at most, whatever the room."""

    needs_room = True

    def __post_init__(self) -> None:
        checks.whole(self, ("start",), 2)
        checks.whole(self, ("most",), self.start)

    @property
    def width(self) -> int:
        """Branches to expect: how many come later is not known."""
        return self.start

    async def grow(self, growth: Growth) -> None:
        """All branches that there is room for; a leaf at each end."""
        for ordinal in range(min(self.most, max(self.start, growth.room.max_leaves or 0))):
            growth.start(growth.path(Branch(*growth.root, ordinal)))
        await growth.last_room()
