"""Nodes of a tree as they are drawn: those that follow each other without a fork together."""

from collections import Counter
from collections.abc import Mapping

from banyan.tree import Leaf
from banyan.view import Node, TreeView


def runs(view: TreeView, advantages: Mapping[int, float]) -> list[list[Node]]:
    """Return the nodes in their order, those that follow each other without a fork together.

    The prompt stays alone, and so does what has another advantage or a reward of its own.
    """
    children = Counter(node.parent for node in view.nodes)
    found: dict[int, list[Node]] = {}  # by last node
    for node in view.nodes:
        above = node.parent
        follows = (
            above > 0
            and children[above] == 1
            and view.nodes[above].leaf is None
            and advantages.get(above) == advantages.get(node.index)
            and own_reward(view.nodes[above], view) is None
        )
        found[node.index] = [*(found.pop(above) if follows else ()), node]
    return list(found.values())


def own_reward(node: Node, view: TreeView) -> float | None:
    """Return the reward of a place inside a path that a node ends with; None without any."""
    return view.facts.rewards.get(Leaf(node.segment.id, node.stop))


def text_of(node: Node) -> str:
    """Return the text of a node: the segment's, with the range of the node's tokens if a part."""
    if (node.start, node.stop) == (0, len(node.segment)):
        return node.segment.text
    return f"{node.segment.text} (tokens {node.start}..{node.stop})"
