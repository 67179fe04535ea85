"""A tree policy that asks a head at the first token of each leaf's own segment, for tests of what a learner makes of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from banyan.draws import Draws
from banyan.plugins import GrowthBudget, GrowthView, Observation, Plan
from banyan.tree import Leaf, Tree


@dataclass(frozen=True)
class ObservingPolicy:
    """Grows nothing. kept: what it says of each leaf."""

    kept: float = 0.5
    needs_head = True

    def plan(self, view: GrowthView, room: GrowthBudget, rng: Draws) -> Plan:
        """Nothing."""
        return Plan(done=True)

    def observations(self, tree: Tree, leaves: Sequence[Leaf]) -> list[Observation]:
        """One of each leaf."""
        return [Observation(leaf, 1, self.kept) for leaf in leaves]
