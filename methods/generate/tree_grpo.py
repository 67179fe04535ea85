"""tree-grpo: a chain, and side branches from random nodes.

Paper: Ji et al. 2025, Tree-GRPO, arXiv 2509.21240
Formula: l rounds of n random nodes; 1 + l·n leaves
Left out: nodes that are turns of an agent; here a node is a run of `node` tokens

A chain from the prompt; then l times, n nodes are drawn uniformly with replacement from the prompt
and all nodes that are not leaves, and each is continued to a path's end. A rollout's last run is
its leaf. A rollout is sampled in one go: only rounds wait for each other. A recipe's `trees` is the
paper's m.
"""

from bisect import bisect_right
from dataclasses import dataclass

from banyan.plugins import checks
from methods.generate.coroutine_policy import Growing, Growth, Place
from methods.generate.rollouts import Rollout, roll_out


@dataclass(frozen=True)
class TreeGRPO(Growing):
    """Expansion of random nodes."""

    forks_inside = True

    rounds: int = 1
    """l: rounds of expansion."""
    expansions: int = 2
    """n: nodes that a round expands; the same may be drawn twice."""
    node: int = 128
    """Tokens of a node."""

    def __post_init__(self) -> None:
        checks.whole(self, ("expansions", "node"), 1)
        checks.whole(self, ("rounds",), 0)

    @property
    def width(self) -> int:
        """k: leaves of a tree."""
        return 1 + self.rounds * self.expansions

    async def grow(self, growth: Growth) -> None:
        """Sample the chain, then expand round by round."""
        width = growth.width(self.width)
        ended: list[Rollout] = []
        inner = [1]  # nodes that are no leaves: of the prompt, and of the rollouts up to each
        rounds = [
            range(min(1, width)),
            *(range(i, min(i + self.expansions, width)) for i in range(1, width, self.expansions)),
        ]
        for numbers in rounds:
            drawn = [growth.rng.below(inner[-1], "tree-grpo.node", number) for number in numbers]
            nodes = [self._node(growth.root, ended, inner, at) for at in drawn]
            started = [
                growth.start(roll_out(growth, n, *node))
                for n, node in zip(numbers, nodes, strict=True)
            ]
            for slot in started:
                ended.append(await slot)
                inner.append(inner[-1] + (len(ended[-1].run) - 1) // self.node)

    def _node(
        self, root: Place, ended: list[Rollout], inner: list[int], at: int
    ) -> tuple[Place, int]:
        """Return the place at the end of the at-th node, and the number of policy tokens before
        it."""
        if not at:
            return root, 0
        index = bisect_right(inner, at) - 1
        position = ended[index].start + self.node * (at - inner[index] + 1)
        return ended[index].place(position), position
