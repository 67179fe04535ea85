"""iid: independent samples of one prompt, as GRPO and most others draw them (Shao et al. 2024, arXiv 2402.03300).

A tree of depth one: `width` branches from the root, each sampled to its end. The prompt is still shared.
"""

from dataclasses import dataclass, replace

from banyan.draws import Draws
from banyan.plugins import Branch, Expansion, GrowthView, LeafMark, Plan, Room
from banyan.segment import Finish
from banyan.tree import Leaf
from services.rollout.generate.cuts import continuations, run_at


@dataclass(frozen=True)
class Iid:
    """Independent sampling."""

    width: int = 8
    """Leaves of a tree."""

    def __post_init__(self) -> None:
        if not isinstance(self.width, int) or self.width < 1:
            raise ValueError(f"width must be a whole number of at least 1, got {self.width!r}")

    def plan(self, view: GrowthView, room: Room, rng: Draws) -> Plan:
        """All branches at once; a leaf at each end."""
        width = self.width if room.max_leaves is None else min(self.width, room.max_leaves)
        sampling = replace(view.sampling, max_new_tokens=view.max_path_tokens)
        branches = [Branch(view.root.id, len(view.root), ordinal) for ordinal in range(width)]
        runs = [run_at(view, branch) for branch in branches]
        leaves = tuple(
            LeafMark(Leaf(run.last.id, len(run.last)), "stop" if run.last.finish is Finish.STOP else "length")
            for run in runs
            if run is not None
        )
        expansions = (*(Expansion(branch, sampling) for branch in branches), *continuations(view))
        return Plan(expansions, leaves, done=None not in runs)
