"""Who is asked for plans while a tree grows: the policy's own planner, or one that plans the whole tree each time."""

from dataclasses import dataclass

from banyan.draws import Draws
from banyan.plugins import NOTHING_NEW, GrowthBudget, GrowthView, News, Plan, Planner, TreePolicy


@dataclass(frozen=True, slots=True)
class Anew:
    """The planner of a policy that has a plan alone."""

    policy: TreePolicy
    view: GrowthView
    room: GrowthBudget
    rng: Draws

    def plan(self, news: News = NOTHING_NEW) -> Plan:
        """All of the plan."""
        return self.policy.plan(self.view, self.room, self.rng)


def planner(policy: TreePolicy, view: GrowthView, room: GrowthBudget, rng: Draws) -> Planner:
    """The planner of a tree in a room, begun on what the view holds."""
    own = getattr(policy, "planner", None)
    if own is None:
        return Anew(policy, view, room, rng)
    made: Planner = own(view, room, rng)
    return made
