"""rounds: independent samples, first a few and then as many as control gives room for (XRPO; card 20, phases).

A tree of depth one, as `iid` grows it, whose width is not known when it begins: `start` (n_0) branches from the root, then
as many in all as `room.max_leaves` says, `most` (n_max) at most. Which prompt gets how many is decided by control, among
trees that wait with their rewards; the tree is done when its room is final.
"""

from dataclasses import dataclass, replace

from banyan.draws import Draws
from banyan.plugins import Branch, Expansion, GrowthView, LeafMark, Plan, Room
from banyan.segment import Finish
from banyan.tree import Leaf
from services.rollout.generate.cuts import continuations, run_at


@dataclass(frozen=True)
class Rounds:
    """Independent sampling by rooms."""

    start: int = 4
    """n_0: leaves before control has said anything; at least 2, since a spread needs two."""
    most: int = 64
    """n_max: leaves at most, whatever the room."""

    needs_room = True

    def __post_init__(self) -> None:
        for name, least in (("start", 2), ("most", self.start)):
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {getattr(self, name)!r}")

    @property
    def width(self) -> int:
        """Branches to expect: how many come later is not known."""
        return self.start

    def plan(self, view: GrowthView, room: Room, rng: Draws) -> Plan:
        """All branches that there is room for; a leaf at each end."""
        count = min(self.most, max(self.start, room.max_leaves or 0))
        sampling = replace(view.sampling, max_new_tokens=view.max_path_tokens)
        branches = [Branch(view.root.id, len(view.root), ordinal) for ordinal in range(count)]
        runs = [run_at(view, branch) for branch in branches]
        leaves = tuple(
            LeafMark(Leaf(run.last.id, len(run.last)), "stop" if run.last.finish is Finish.STOP else "length")
            for run in runs
            if run is not None
        )
        expansions = (*(Expansion(branch, sampling) for branch in branches), *continuations(view))
        return Plan(expansions, leaves, done=room.final and None not in runs)
