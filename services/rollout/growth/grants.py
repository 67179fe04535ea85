"""Growth budget that control grants to one tree, round by round."""

from dataclasses import dataclass, replace

from banyan.plugins import GrowthBudget
from banyan.v1 import tree_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetGrant:
    """The newest decision of control about a tree. Later rounds only ever add.

    round: number of decisions about the tree so far, from 1.
    leaves: leaves that the tree may have in all.
    final: whether control will grant no more.
    """

    round: int
    leaves: int
    final: bool = False

    def apply(self, budget: GrowthBudget) -> GrowthBudget:
        """Return a growth budget with this grant in the place of an earlier one."""
        return replace(budget, max_leaves=self.leaves, final=self.final)

    def to_wire(self) -> tree_pb2.TreeRoom:
        """Return the message, as the store keeps it."""
        return tree_pb2.TreeRoom(round=self.round, leaves=self.leaves, final=self.final)


def from_wire(message: tree_pb2.TreeRoom) -> BudgetGrant:
    """Read a message of the store."""
    return BudgetGrant(round=message.round, leaves=message.leaves, final=message.final)
