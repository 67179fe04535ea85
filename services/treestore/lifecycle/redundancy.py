"""Redundant trees of a group. Pure.

A group may be opened with spare trees (RollArt, arXiv 2512.22560; ADR 015). It takes the first
`take` trees that close, so that it waits for no straggler. Short answers close sooner, so these
are shorter than the policy's answers on average. With `take_in_order` it takes the trees
of the lowest indices instead, however long they last: a draw that is independent of lengths, since
trees of a group differ by their seeds alone. A spare then only replaces a tree that was dropped.
"""

from collections.abc import Iterable

from services.treestore.unit_of_work.rows import CLOSED, DROPPED, GroupRow, GroupState, TreeRow

REASON = "REDUNDANT"


def surplus(group: GroupRow, trees: Iterable[TreeRow]) -> list[TreeRow]:
    """Return the trees to drop; none before the trees that the group takes are closed."""
    if not group.take or group.state not in (GroupState.OPEN, GroupState.CLOSED):
        return []
    candidates = sorted(
        (tree for tree in trees if tree.state != DROPPED), key=lambda tree: tree.tree_index
    )
    closed = [tree for tree in candidates if tree.state == CLOSED]
    by_time = sorted(closed, key=lambda tree: tree.closed_ms)
    taken = (candidates if group.take_in_order else by_time)[: group.take]
    if len(taken) < group.take or any(tree.state != CLOSED for tree in taken):
        return []
    return [tree for tree in candidates if tree not in taken]
