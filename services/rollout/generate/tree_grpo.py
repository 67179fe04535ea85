"""tree-grpo: a chain, and side branches from nodes drawn at random (Ji et al. 2025, Tree-GRPO, arXiv 2509.21240; baselines).

A chain from the prompt; then l times, n nodes are drawn uniformly with replacement from the prompt and all nodes that are
not leaves, and each is continued to a path's end. So there are 1 + l·n leaves. The paper's node is a turn of an agent; here
it is a run of `node` tokens of a rollout, and a rollout's last run is its leaf. A rollout is sampled in one go: only rounds
wait for each other. A recipe's `trees` is the paper's m.
"""

from dataclasses import dataclass

from banyan.draws import Draws
from banyan.plugins import GrowthView, Plan, Room
from services.rollout.generate.rollouts import Place, Rollout, Rollouts, whole_numbers


@dataclass(frozen=True)
class TreeGRPO:
    """Expansion of random nodes."""

    rounds: int = 1
    """l: rounds of expansion."""
    expansions: int = 2
    """n: nodes that a round expands; the same may be drawn twice."""
    node: int = 128
    """Tokens of a node."""

    def __post_init__(self) -> None:
        whole_numbers(self, rounds=0, expansions=1, node=1)

    @property
    def width(self) -> int:
        """k: leaves of a tree."""
        return 1 + self.rounds * self.expansions

    def plan(self, view: GrowthView, room: Room, rng: Draws) -> Plan:
        """The chain, then round by round."""
        width = self.width if room.max_leaves is None else min(self.width, room.max_leaves)
        grown = Rollouts(view)
        nodes: list[tuple[Place, int]] = [(grown.root, 0)]
        rounds = [range(1), *(range(i, min(i + self.expansions, width)) for i in range(1, width, self.expansions))]
        for numbers in rounds:
            drawn = [nodes[rng.below(len(nodes), "tree-grpo.node", number)] for number in numbers]
            made = [grown.grow(number, *node) for number, node in zip(numbers, drawn, strict=True)]
            ended = [rollout for rollout in made if rollout is not None]
            if len(ended) < len(made):
                break
            nodes += [node for rollout in ended for node in self._inner(rollout)]
        return grown.plan(width)

    def _inner(self, rollout: Rollout) -> list[tuple[Place, int]]:
        """Ends of a rollout's nodes but its last, which is a leaf."""
        return [(rollout.place(at), at) for at in range(rollout.start + self.node, rollout.stop, self.node)]
