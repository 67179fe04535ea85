"""The ends of trees: closed, dropped or consumed, with what follows for their groups, sums and the log."""

import math
from collections.abc import Collection

from banyan import reward
from banyan.v1 import events_pb2, tree_pb2
from services.treestore.lifecycle import redundancy
from services.treestore.unit_of_work import completion
from services.treestore.unit_of_work.rows import (
    CLOSED,
    CONSUMED,
    DROPPED,
    SCORING,
    GroupRow,
    GroupState,
    TreeRow,
)
from services.treestore.unit_of_work.unit_of_work import UnitOfWork

STALE = "STALE"  # why a group is given up that was opened too many policies ago


def settle(book: UnitOfWork) -> None:
    """Closes every grown tree that the book touched and that is owed no score."""
    for tree_id in list(book.touched):
        tree = book.trees.get(tree_id)
        if tree is not None and tree.state == SCORING and not book.owed(tree):
            _close(book, tree)
    thin(book, [book.groups[key] for key in sorted(book.changed_groups)])


def thin(book: UnitOfWork, groups: Collection[GroupRow]) -> None:
    """Gives up the trees that groups need no more."""
    for group in groups:
        if group.take:
            for tree in redundancy.surplus(group, book.of_group(group)):
                give_up(book, tree, redundancy.REASON)


def give_up(book: UnitOfWork, tree: TreeRow, reason: str) -> None:
    """Gives up a tree that no batch holds, whether it is closed or not."""
    if tree.state == CLOSED:
        discard(book, tree, reason)
    else:
        drop(book, tree, reason)


def expire(book: UnitOfWork, groups: Collection[GroupRow]) -> None:
    """Give up groups that no batch may take any more, with all trees that they have so far.

    A tree of theirs that is opened later is given up as it comes (`accept`), so a group is over at once and keeps no
    place of the gate, however many of its trees are still on their way.
    """
    for group in groups:
        discard_group(book, group, STALE)
        for tree in book.of_group(group):
            if tree.state != DROPPED:
                give_up(book, tree, STALE)


def _close(book: UnitOfWork, tree: TreeRow) -> None:
    part = book.part(tree.tree_id)
    rewards = completion.rewards(part.leaves, tree.scorers, part.scores)
    values = [value for value in rewards.values() if value is not None]
    tally = book.tally(tree)
    tally.scored += len(values)
    tally.unscorable += len(rewards) - len(values)
    tally.reward_sum += math.fsum(values)
    tally.correct += sum(value >= 1.0 for value in values)
    tree.mean_reward = reward.mean(values) if values else None
    _end(book, tree, CLOSED, "")


def drop(book: UnitOfWork, tree: TreeRow, reason: str) -> None:
    """Gives a tree up that is not over yet."""
    _end(book, tree, DROPPED, reason)


def _end(book: UnitOfWork, tree: TreeRow, state: int, reason: str) -> None:
    book.change(tree)
    tree.state, tree.reason, tree.closed_ms = state, reason, book.now_ms
    tree.claim_due_ms = tree.growth_due_ms = tree.score_due_ms = tree.remind_due_ms = 0
    group = book.group(tree)
    group.done += 1
    group.dropped += state == DROPPED
    book.changed_groups.add((group.run_id, group.group_id))
    if group.state == GroupState.OPEN and group.done == group.size:
        book.move_group(
            group, GroupState.DROPPED if group.dropped == group.size else GroupState.CLOSED, reason
        )
    book.ended.append(tree)
    _tell(book, tree, group.state != GroupState.OPEN)


def consume(book: UnitOfWork, tree: TreeRow) -> None:
    """A batch holds the tree from now on."""
    book.change(tree).state = CONSUMED


def discard(book: UnitOfWork, tree: TreeRow, reason: str) -> None:
    """Gives a closed tree up: its group teaches nothing, or can do without it, or is too old."""
    book.change(tree)
    tree.state, tree.reason = DROPPED, reason
    group = book.group(tree)
    group.dropped += 1
    book.changed_groups.add((group.run_id, group.group_id))
    _tell(book, tree, True)


def consume_group(book: UnitOfWork, group: GroupRow) -> None:
    """A batch holds the group from now on."""
    book.move_group(group, GroupState.CONSUMED)


def discard_group(book: UnitOfWork, group: GroupRow, reason: str) -> None:
    """A batch gave the group up."""
    book.move_group(group, GroupState.DROPPED, reason)


def _tell(book: UnitOfWork, tree: TreeRow, group_closed: bool) -> None:
    event = events_pb2.TreeClosed(
        run_id=tree.run_id,
        tree_id=tree.tree_id,
        group_id=tree.group_id,
        state=tree_pb2.TreeState.ValueType(tree.state),
        reason=tree.reason,
        group_closed=group_closed,
        purpose=tree_pb2.TreePurpose.ValueType(tree.purpose),
        label=tree.label,
    )
    book.closings.setdefault(tree.run_id, []).append(event)
