"""The growth budgets that trees get now (ADR 016).

Pure: a second gateway makes the same grants of the same facts.

The trees of a block of groups share a pot: each brings the recipe's rollouts, and leaves that one
does not need go to others. A round is decided when all growing trees of the block wait, that is
when all their leaves have ended and been scored. A tree that has waited for `patience_s` does not
wait longer for slower ones: the round is then decided among the trees whose leaves have ended, with
the scores that exist.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

from banyan.errors import InvalidInput, users_code, with_place
from banyan.plugins import RoomShare, Waiting, traits


@dataclass(frozen=True, slots=True)
class TreeBudget:
    """The known facts of a tree.

    ordinal: of its group.
    growing: True until the tree is closed or dropped.
    granted: leaves granted so far; its tree policy's `start` before the first round.
    round: number of its last round.
    final: True if it gets no more leaves.
    ended: leaves that have ended.
    rewards: of ended leaves that all scorers have scored; None if a leaf could not be scored.
    waited_s: time since its last segment or its last round.
    """

    tree_id: bytes
    ordinal: int
    growing: bool
    granted: int
    round: int = 0
    final: bool = False
    ended: int = 0
    rewards: Sequence[float | None] = ()
    waited_s: float = 0.0

    @property
    def open(self) -> bool:
        """True if it may still be granted leaves."""
        return self.growing and not self.final

    @property
    def idle(self) -> bool:
        """True if all granted leaves have ended."""
        return self.open and self.ended >= self.granted

    @property
    def waits(self) -> bool:
        """True if they have been scored as well."""
        return self.idle and len(self.rewards) >= self.ended


@dataclass(frozen=True, slots=True)
class Grant:
    """A tree's growth budget from now on.

    leaves: granted leaves in total.
    final: True if it is the last grant.
    round: number of this round.
    """

    tree_id: bytes
    leaves: int
    final: bool
    round: int


@dataclass(frozen=True, slots=True)
class GrowthBudgets:
    """The division of growth budgets in a run.

    share: plugin that divides a round's leaves.
    block: groups in a block.
    most: largest number of leaves of a tree.
    patience_s: longest time that a tree waits for the others of its block.
    """

    share: RoomShare
    block: int
    most: int
    patience_s: float = math.inf

    def grants(self, trees: Sequence[TreeBudget]) -> dict[int, list[Grant]]:
        """Return the grants of the rounds that are due, by block."""
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
        """Return the trees of the round that is due; empty if they wait for others."""
        if all(tree.waits for tree in members if tree.open):
            return [tree for tree in members if tree.open]
        idle = [tree for tree in members if tree.idle]
        return idle if any(tree.waited_s >= self.patience_s for tree in idle) else []

    def _round(self, members: Sequence[TreeBudget], trees: Sequence[TreeBudget]) -> list[Grant]:
        pot, granted = self._pot(members, trees)
        rounds_left = self.share.phases - 1 - max(tree.round for tree in trees)  # with this one
        budget = pot // rounds_left if rounds_left > 1 else pot
        waiting = [
            Waiting(tree.granted, tuple(r for r in tree.rewards if r is not None)) for tree in trees
        ]
        name = traits.label(self.share)
        with users_code(lambda error: f"{name}: share raised {with_place(error)}"):
            more = list(self.share.share(waiting, budget, self.most, granted))
        if len(more) != len(trees) or not all(isinstance(extra, Integral) for extra in more):
            raise InvalidInput(
                f"{name}: share answers with {more!r:.100}; it must be a whole number of leaves"
                f" for each of {len(trees)} trees"
            )
        last = rounds_left <= 1 or pot == sum(more)
        grants = []
        for tree, extra in zip(trees, more, strict=True):
            leaves = tree.granted + extra
            grants.append(
                Grant(
                    tree_id=tree.tree_id,
                    leaves=leaves,
                    final=last or leaves >= self.most,
                    round=tree.round + 1,
                )
            )
        return grants

    def _pot(self, members: Sequence[TreeBudget], trees: Sequence[TreeBudget]) -> tuple[int, int]:
        """Return the leaves to divide, and the leaves granted so far.

        Trees that were never in a round keep the leaves that they will bring.
        """
        mine = {tree.tree_id for tree in trees}
        counted = [
            tree for tree in members if tree.tree_id in mine or tree.round or not tree.growing
        ]
        granted = sum(tree.granted for tree in counted)
        return max(0, self.share.rollouts * len(counted) - granted), granted
