"""A policy that is a table: a chain of steps, each right with the probability of its fact.

The facts of a chain are drawn anew for each prompt; a path is right if all its steps are. Behind
its first mistake a path goes on with other facts, which decide nothing any more. So value, gradient
and the cost of any tree follow from the table, without a model between them.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from banyan.plugins import Advantages, Estimator, GroupTrees
from banyan.segment import Kind, Segment
from banyan.tree import Leaf, Tree
from banyan.view import TreeView

Floats = npt.NDArray[np.float64]
STEPS, TOKENS = 16, 6  # steps of a chain; tokens of a step
FACTS = 200


@dataclass(frozen=True)
class Shape:
    """How a tree grows: the steps of a path are cut into as many equal runs as there are forks.

    forks: ways in which each run begins, from the prompt on; independent samples fork once
    """

    forks: tuple[int, ...]

    @property
    def leaves(self) -> int:
        """Number of paths."""
        return int(np.prod(self.forks))

    def steps(self, run: int) -> int:
        """Return the steps of a run."""
        ends = [STEPS * at // len(self.forks) for at in (run, run + 1)]
        return ends[1] - ends[0]


@dataclass
class Grown:
    """A tree with what was drawn in it.

    drawn: facts and whether their steps were right, by segment
    tokens: sampled tokens
    """

    tree: Tree
    rewards: dict[Leaf, float] = field(default_factory=dict)
    drawn: dict[bytes, tuple[npt.NDArray[np.int64], Floats]] = field(default_factory=dict)
    tokens: int = 0


def grow(shape: Shape, right_F: Floats, rng: np.random.Generator) -> Grown:
    """Grow a tree of a new prompt. right_F: probability that a step on each fact is right."""
    asked = rng.integers(0, FACTS, STEPS)
    grown = Grown(Tree(rng.bytes(32)))
    root = Segment(grown.tree.tree_id, b"", 0, 0, Kind.PROMPT, np.zeros(1, np.int32))
    grown.tree.add(root)
    ends = [(root, True)]
    first = 0
    for run, ways in enumerate(shape.forks):
        last = first + shape.steps(run)
        ends = [
            _continue(grown, above, way, asked[first:last], right_F, rng, good=good)
            for above, good in ends
            for way in range(ways)
        ]
        first = last
    grown.rewards = {Leaf(end.id, len(end)): float(good) for end, good in ends}
    grown.tokens += len(ends)  # each ends with a token of its own
    return grown


def _continue(
    grown: Grown,
    above: Segment,
    way: int,
    asked: npt.NDArray[np.int64],
    right_F: Floats,
    rng: np.random.Generator,
    *,
    good: bool,
) -> tuple[Segment, bool]:
    """Add a run behind a segment; return it, and whether all is right up to its end."""
    facts, right = np.empty(len(asked), np.int64), np.empty(len(asked))
    for at, fact in enumerate(asked):
        facts[at] = fact if good else rng.integers(0, FACTS)
        right[at] = rng.random() < right_F[facts[at]]
        good = good and bool(right[at])
    size = len(asked)
    segment = Segment(
        grown.tree.tree_id,
        above.id,
        len(above),
        way,
        Kind.POLICY,
        np.zeros(size, np.int32),
        np.zeros(size, np.float32),
    )
    grown.tree.add(segment)
    grown.drawn[segment.id] = facts, right
    grown.tokens += TOKENS * size
    return segment, good


def gradient(grown: Grown, estimator: Estimator, right_F: Floats) -> Floats:
    """Return the gradient [F] of a tree with respect to the logits of all facts, a path's mean."""
    view = TreeView(grown.tree, list(grown.rewards), grown.rewards)
    found = estimator.estimate(GroupTrees("one", (view,)))
    gradient_F = np.zeros(FACTS)
    if found.skip:
        return gradient_F
    for node, value in zip(view.nodes, _of_nodes(view, found), strict=True):
        if node.segment.id in grown.drawn:  # all but the prompt
            facts, right = grown.drawn[node.segment.id]
            np.add.at(gradient_F, facts, value * (right - right_F[facts]))
    return gradient_F / len(grown.rewards)


def _of_nodes(view: TreeView, found: Advantages) -> list[float]:
    """Return the sum of each node's advantage over its paths."""
    total = [0.0] * len(view.nodes)
    for leaf in view.scored_L:
        for node in view.path(leaf):
            total[node] += float(
                found.node_G_N[0][node] if found.node_G_N else found.leaf_G_L[0][leaf]
            )
    return total
