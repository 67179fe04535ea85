"""View of a tree as nodes: the unit of credit, packing and display.

A node is a maximal run of tokens between forks and ends, so a policy may fork or prune inside a
finished segment. Tokens beyond every fork and end belong to no node; they count as waste.

Nodes are in DFS pre-order: all nodes below a node follow it in one run, which packing and attention
rely on. The continuation of a segment comes before the forks from that point. So of the forks of
one segment the later ones come first, whereas the order of segments and places (banyan/order.py),
which is no pre-order of nodes, has them last. In all else the two agree: forks from one place come
by ordinal, and a segment before all forks from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from banyan.errors import InvalidInput
from banyan.facts import NO_FACTS, Facts
from banyan.plugins.filter import MOST_REWARD
from banyan.segment import Floats, IntTokens, Kind, Segment
from banyan.tree import Leaf, Tree


@dataclass(eq=False, slots=True)
class Node:
    """Tokens start..stop of one segment. Sums run over the scored leaves at or below the node.

    index: position in the view
    parent: index of the parent node, -1 for the root
    depth: forks above it
    prefix_len: tokens before it on its path
    children: indices of the child nodes
    leaf: index of the leaf whose path ends with this node's last token
    paths: scored leaves at or below
    """

    index: int
    segment: Segment
    start: int
    stop: int
    parent: int
    depth: int
    prefix_len: int
    children: list[int] = field(default_factory=list)
    leaf: int | None = None
    paths: int = 0
    reward_sum: float = 0.0
    reward_sq_sum: float = 0.0

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def trained(self) -> bool:
        """True if the learner takes a loss on these tokens: only on the policy's own samples."""
        return self.segment.kind is Kind.POLICY

    @property
    def value(self) -> float:
        """V(n): mean reward of the scored leaves at or below; nan without any."""
        return self.reward_sum / self.paths if self.paths else float("nan")

    @property
    def tokens_T(self) -> IntTokens:
        return self.segment.tokens_T[self.start : self.stop]

    @property
    def logprobs_T(self) -> Floats:
        """Behaviour log-probs; zeros for context tokens."""
        if not len(self.segment.logprobs_T):
            return np.zeros(len(self), np.float32)
        return self.segment.logprobs_T[self.start : self.stop]


class TreeView:
    """Nodes of one tree in DFS pre-order, with each leaf's path.

    `leaves_L` and `rewards_L` (nan where unscorable) are in the given order of leaves.

    rewards: leaf → value; a leaf that is missing or None is unscorable: it keeps its nodes as
        context but counts in no statistic
    facts: other facts of the tree; a node ends where a place has a reward of its own
    """

    def __init__(
        self,
        tree: Tree,
        leaves: Sequence[Leaf],
        rewards: Mapping[Leaf, float | None],
        facts: Facts = NO_FACTS,
    ) -> None:
        if tree.root is None:
            raise InvalidInput(f"tree {tree.tree_id.hex()[:12]} has no root segment")
        if len(set(leaves)) != len(leaves):
            raise InvalidInput(f"tree {tree.tree_id.hex()[:12]} names a leaf twice")
        self.tree = tree
        self.facts = facts
        self.leaves_L = list(leaves)
        values = [rewards.get(leaf) for leaf in leaves]
        self.rewards_L = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
        if (large := np.abs(self.rewards_L) > MOST_REWARD).any():
            beyond = f"a reward of {self.rewards_L[large][0]:g} is beyond ±{MOST_REWARD:g}"
            raise InvalidInput(f"{beyond}; scale it down")
        self.nodes: list[Node] = []
        self.leaf_node_L: list[int] = [-1] * len(self.leaves_L)
        self._build()
        self._sum_up()

    # -- construction --

    def _cuts(self) -> dict[bytes, set[int]]:
        """Return the positions where a node ends, for each segment on a leaf's path."""
        cuts: dict[bytes, set[int]] = {}
        for leaf in self.leaves_L:
            if leaf.segment not in self.tree.segments or not 0 <= leaf.end <= len(
                self.tree.segments[leaf.segment]
            ):
                raise InvalidInput(
                    f"leaf ({leaf.segment.hex()[:12]}, {leaf.end}) is not in tree "
                    f"{self.tree.tree_id.hex()[:12]}"
                )
            for segment, end in self.tree.pieces(leaf.segment, leaf.end):
                cuts.setdefault(segment.id, set()).add(end)
        for place in self.facts.rewards:
            if place.end < max(cuts.get(place.segment, (0,))):
                cuts[place.segment].add(place.end)
        return cuts

    def _build(self) -> None:
        assert self.tree.root is not None
        cuts = self._cuts()
        cuts.setdefault(self.tree.root.id, {len(self.tree.root)})
        self._ends: dict[tuple[bytes, int], int] = {}
        # Segment, first token, parent node.
        stack: list[tuple[Segment, int, int]] = [(self.tree.root, 0, -1)]
        while stack:
            segment, start, parent = stack.pop()
            stop = min((c for c in cuts[segment.id] if c > start), default=start)
            node = (
                self._append(segment, start, stop, parent) if stop > start or parent < 0 else parent
            )
            self._ends[(segment.id, stop)] = node
            stack.extend(reversed(self._following(cuts, segment, (start, stop), (parent, node))))
        for index, leaf in enumerate(self.leaves_L):
            self._end_leaf(index, leaf)

    def _following(
        self,
        cuts: Mapping[bytes, set[int]],
        segment: Segment,
        span: tuple[int, int],
        nodes: tuple[int, int],
    ) -> list[tuple[Segment, int, int]]:
        """Return the successors of tokens start..stop of a segment, which made nodes[1] below
        nodes[0].

        These are the rest of the segment, forks at stop, and at last forks before the first token,
        as those are not below these tokens.
        """
        (start, stop), (parent, node) = span, nodes
        used = [child for child in self.tree.children.get(segment.id, ()) if child.id in cuts]
        rest = [(segment, stop, node)] if any(c > stop for c in cuts[segment.id]) else []
        there = [(child, 0, node) for child in used if child.fork == stop]
        before = (
            [(child, 0, parent) for child in used if child.fork == 0]
            if start == 0 and stop > 0
            else []
        )
        return [*rest, *there, *before]

    def _append(self, segment: Segment, start: int, stop: int, parent: int) -> int:
        above = self.nodes[parent] if parent >= 0 else None
        prefix = above.prefix_len + len(above) if above else 0
        node = Node(
            index=len(self.nodes),
            segment=segment,
            start=start,
            stop=stop,
            parent=parent,
            depth=above.depth + 1 if above else 0,
            prefix_len=prefix,
        )
        self.nodes.append(node)
        if above:
            above.children.append(node.index)
        return node.index

    def _end_leaf(self, index: int, leaf: Leaf) -> None:
        segment, end = leaf.segment, leaf.end
        # The end of an empty piece is the fork in its parent.
        while end == 0 and self.tree.segments[segment].parent:
            segment, end = self.tree.segments[segment].parent, self.tree.segments[segment].fork
        node = self.nodes[self._ends[(segment, end)]]
        if node.leaf is not None:
            raise InvalidInput(
                f"two leaves of tree {self.tree.tree_id.hex()[:12]} end at the same token"
            )
        node.leaf = index
        self.leaf_node_L[index] = node.index

    def _sum_up(self) -> None:
        for index, reward in enumerate(self.rewards_L):
            if np.isfinite(reward):
                node = self.nodes[self.leaf_node_L[index]]
                node.paths = 1
                node.reward_sum = float(reward)
                node.reward_sq_sum = float(reward) ** 2
        for node in reversed(self.nodes):  # children before parents
            if node.parent >= 0:
                above = self.nodes[node.parent]
                above.paths += node.paths
                above.reward_sum += node.reward_sum
                above.reward_sq_sum += node.reward_sq_sum

    # -- reading --

    def path(self, leaf: int) -> list[int]:
        """Return the node indices from the root to the leaf's last node."""
        nodes: list[int] = []
        at = self.leaf_node_L[leaf]
        while at >= 0:
            nodes.append(at)
            at = self.nodes[at].parent
        return nodes[::-1]

    @property
    def scored_L(self) -> list[int]:
        """Indices of the leaves that have a value."""
        return [i for i, r in enumerate(self.rewards_L) if np.isfinite(r)]

    @property
    def unique_tokens(self) -> int:
        """Number of tokens of all nodes: the work of a packed forward pass."""
        return sum(len(node) for node in self.nodes)

    @property
    def path_tokens(self) -> int:
        """Number of tokens of all leaves' paths: the work of a flat forward pass."""
        return sum(
            len(self.nodes[i]) for leaf in range(len(self.leaves_L)) for i in self.path(leaf)
        )

    @property
    def wasted_tokens(self) -> int:
        """Number of stored tokens that lie beyond every fork and end."""
        return sum(len(s) for s in self.tree) - self.unique_tokens
