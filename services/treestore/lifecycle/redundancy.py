"""Which trees of a group are too many: pure (RollArt, card 42). A group may be opened with spare trees.

It takes the first `take` that close, so that it waits for no straggler. Short answers close sooner, so what it takes is
shorter than what the policy says on average. `take_in_order` takes those of the lowest indices instead, whatever they
last: a draw that knows nothing of lengths, since trees of a group differ by their seeds alone. Then a spare only stands in
for a tree that was given up.
"""

from collections.abc import Iterable

from services.treestore.unit_of_work.rows import CLOSED, DROPPED, GroupRow, GroupState, TreeRow

REASON = "REDUNDANT"


def surplus(group: GroupRow, trees: Iterable[TreeRow]) -> list[TreeRow]:
    """The trees to give up, once those that the group takes are closed; empty before."""
    if not group.take or group.state not in (GroupState.OPEN, GroupState.CLOSED):
        return []
    left = sorted(
        (tree for tree in trees if tree.state != DROPPED), key=lambda tree: tree.tree_index
    )
    first = (
        left
        if group.take_in_order
        else sorted((t for t in left if t.state == CLOSED), key=lambda t: t.closed_ms)
    )
    taken = first[: group.take]
    if len(taken) < group.take or any(tree.state != CLOSED for tree in taken):
        return []
    return [tree for tree in left if tree not in taken]
