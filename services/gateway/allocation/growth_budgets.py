"""Which trees get how much room now. Pure: the same facts give the same grants, so a second gateway goes on with them.

The trees of a block of groups share a pot: each brings the recipe's rollouts, and what one does not need is another's. A
round is decided when all trees of the block that grow wait, that is when all their leaves have ended and been scored. One
that waits for `patience_s` is not kept waiting for slower ones: the round is then decided among those whose leaves have
ended, with the scores that there are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from banyan.plugins import RoomShare, Waiting


@dataclass(frozen=True, slots=True)
class TreeBudget:
    """What is known of a tree. `given` is its tree policy's `start` before control's first round."""

    tree_id: bytes
    ordinal: int
    growing: bool
    given: int
    round: int = 0
    final: bool = False
    ended: int = 0  # leaves
    # of ended leaves of which all scorers have spoken; None: it could not be scored
    rewards: Sequence[float | None] = ()
    waited_s: float = 0.0

    @property
    def open(self) -> bool:
        """Whether it may yet be given room."""
        return self.growing and not self.final

    @property
    def idle(self) -> bool:
        """Whether all leaves that it was given have ended."""
        return self.open and self.ended >= self.given

    @property
    def waits(self) -> bool:
        """Whether they have been scored as well."""
        return self.idle and len(self.rewards) >= self.ended


@dataclass(frozen=True, slots=True)
class Grant:
    """A tree's room from now on."""

    tree_id: bytes
    leaves: int
    final: bool
    round: int


@dataclass(frozen=True, slots=True)
class GrowthBudgets:
    """How a run shares room out."""

    share: RoomShare
    block: int  # groups
    most: int  # leaves of a tree
    patience_s: float = math.inf

    def grants(self, trees: Sequence[TreeBudget]) -> dict[int, list[Grant]]:
        """The rounds that are due, by block."""
        blocks: dict[int, list[TreeBudget]] = {}
        for tree in sorted(trees, key=lambda tree: (tree.ordinal, tree.tree_id)):
            blocks.setdefault(tree.ordinal // self.block, []).append(tree)
        due = {number: self._due(members) for number, members in blocks.items()}
        return {
            number: self._round(blocks[number], members)
            for number, members in due.items()
            if members
        }

    def _due(self, members: Sequence[TreeBudget]) -> list[TreeBudget]:
        """The trees of the round that is due; none if they wait for others."""
        if all(tree.waits for tree in members if tree.open):
            return [tree for tree in members if tree.open]
        idle = [tree for tree in members if tree.idle]
        return idle if any(tree.waited_s >= self.patience_s for tree in idle) else []

    def _round(self, members: Sequence[TreeBudget], trees: Sequence[TreeBudget]) -> list[Grant]:
        pot, given = self._pot(members, trees)
        left = self.share.phases - 1 - max(tree.round for tree in trees)  # rounds, this one too
        budget = pot // left if left > 1 else pot
        waiting = [
            Waiting(tree.given, tuple(r for r in tree.rewards if r is not None)) for tree in trees
        ]
        more = self.share.share(waiting, budget, self.most, given)
        last = left <= 1 or pot == sum(more)
        leaves = {tree.tree_id: tree.given + n for tree, n in zip(trees, more, strict=True)}
        return [
            Grant(t.tree_id, leaves[t.tree_id], last or leaves[t.tree_id] >= self.most, t.round + 1)
            for t in trees
        ]

    def _pot(self, members: Sequence[TreeBudget], trees: Sequence[TreeBudget]) -> tuple[int, int]:
        """Leaves to share out, and leaves given so far. Trees that were never in a round keep what they will bring."""
        mine = {tree.tree_id for tree in trees}
        counted = [
            tree for tree in members if tree.tree_id in mine or tree.round or not tree.growing
        ]
        given = sum(tree.given for tree in counted)
        return max(0, self.share.rollouts * len(counted) - given), given
