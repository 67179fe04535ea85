"""The planner of a tree: the tree policy's own, or one that plans the whole tree each time."""

from dataclasses import dataclass

from banyan.draws import Draws
from banyan.plugins import (
    NOTHING_NEW,
    GrowthBudget,
    GrowthView,
    News,
    Plan,
    Planner,
    TreePolicy,
)


@dataclass(frozen=True, slots=True)
class WholePlanner:
    """The planner of a tree policy that has only `plan`."""

    tree_policy: TreePolicy
    view: GrowthView
    budget: GrowthBudget
    draws: Draws

    def plan(self, news: News = NOTHING_NEW) -> Plan:
        """Return the whole plan."""
        return self.tree_policy.plan(self.view, self.budget, self.draws)


def planner(
    tree_policy: TreePolicy, view: GrowthView, budget: GrowthBudget, draws: Draws
) -> Planner:
    """Return a planner of a tree within a budget, which begins with all that the view holds."""
    make = getattr(tree_policy, "planner", None)
    if make is None:
        return WholePlanner(tree_policy, view, budget, draws)
    own: Planner = make(view, budget, draws)
    return own
