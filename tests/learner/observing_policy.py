"""A tree policy that observes a head at the first token of each leaf's own segment."""

from collections.abc import Sequence
from dataclasses import dataclass

from banyan.draws import Draws
from banyan.plugins import GrowthBudget, GrowthView, Observation, Plan
from banyan.tree import Leaf, Tree


@dataclass(frozen=True)
class ObservingPolicy:
    """A policy that grows nothing.

    kept: probability with which each leaf counts as kept.
    """

    kept: float = 0.5
    needs_head = True

    def plan(self, view: GrowthView, room: GrowthBudget, rng: Draws) -> Plan:
        """Return the end of growth."""
        return Plan(done=True)

    def observations(self, tree: Tree, leaves: Sequence[Leaf]) -> list[Observation]:
        """Return one observation per leaf."""
        return [Observation(leaf, 1, self.kept) for leaf in leaves]
