"""Ends of trees: closed, dropped or consumed, with their effects on groups, sums and the log."""

import math
from collections.abc import Collection, Mapping

from banyan import reward
from banyan.plugins.filter import HEAD_VOTE, VOTE
from banyan.tree import Leaf
from banyan.v1 import events_pb2, tree_pb2
from banyan.wire.weights import by_name
from services.treestore.lifecycle import redundancy
from services.treestore.unit_of_work import completion
from services.treestore.unit_of_work.rows import (
    CLOSED,
    CONSUMED,
    DROPPED,
    SCORING,
    GroupRow,
    GroupState,
    TallyRow,
    TreeRow,
)
from services.treestore.unit_of_work.unit_of_work import UnitOfWork

STALE = "STALE"  # reason of a group that was opened too many policies ago


def close_scored(work: UnitOfWork) -> None:
    """Close every grown tree that the transaction touched and that owes no score."""
    for tree_id in list(work.touched):
        tree = work.trees.get(tree_id)
        if tree is not None and tree.state == SCORING and not work.owed(tree):
            _close(work, tree)
    drop_redundant(work, [work.groups[key] for key in sorted(work.changed_groups)])


def _close(work: UnitOfWork, tree: TreeRow) -> None:
    part = work.part(tree.tree_id)
    weights = by_name(tree.scorers, tree.scorer_weights)
    rewards = completion.rewards(part.leaves, tree.scorers, part.scores, weights)
    values = [value for value in rewards.values() if value is not None]
    tally = work.tally_to_change(tree)
    tally.scored += len(values)
    tally.unscorable += len(rewards) - len(values)
    tally.reward_sum += math.fsum(values)
    tally.correct += sum(value >= 1.0 for value in values)
    _count_votes(tally, tree, rewards, part.scores)
    tree.mean_reward = reward.mean(values) if values else None
    _end(work, tree, CLOSED, "")


def _count_votes(
    tally: TallyRow, tree: TreeRow, rewards: Mapping[Leaf, float | None], scores: completion.Scores
) -> None:
    """Count the votes of an evaluation's row."""
    if VOTE in tree.scorers and (vote := completion.vote(rewards, scores, VOTE)):
        tally.votes += 1
        tally.vote_sum += vote.value
        tally.vote_correct += vote.value >= 1.0
        tally.vote_leaf_sum += vote.leaf_value
        tally.vote_leaf_correct += vote.leaf_correct
    if HEAD_VOTE in tree.scorers and (vote := completion.vote(rewards, scores, HEAD_VOTE)):
        tally.head_votes += 1
        tally.head_vote_sum += vote.value
        tally.head_vote_correct += vote.value >= 1.0
        tally.head_vote_leaf_sum += vote.leaf_value
        tally.head_vote_leaf_correct += vote.leaf_correct


def drop_redundant(work: UnitOfWork, groups: Collection[GroupRow]) -> None:
    """Drop the trees that groups do not need any more."""
    for group in groups:
        if group.take:
            for tree in redundancy.surplus(group, work.of_group(group)):
                drop(work, tree, redundancy.REASON)


def drop_stale_groups(work: UnitOfWork, groups: Collection[GroupRow]) -> None:
    """Drop groups that no batch may take any more, with all trees that they have so far.

    A tree of theirs that is opened later is dropped when it comes (`ingest.apply`). So a group is
    over at once and counts no more for the staleness gate, however many of its trees are on their
    way.
    """
    for group in groups:
        work.move_group(group, GroupState.DROPPED, STALE)
        for tree in work.of_group(group):
            if tree.state != DROPPED:
                drop(work, tree, STALE)


def drop(work: UnitOfWork, tree: TreeRow, reason: str) -> None:
    """Drop a tree that no batch holds, whether it is closed or not."""
    if tree.state == CLOSED:
        _drop_closed(work, tree, reason)
    else:
        drop_open(work, tree, reason)


def drop_open(work: UnitOfWork, tree: TreeRow, reason: str) -> None:
    """Drop a tree that is growing or waits for scores."""
    _end(work, tree, DROPPED, reason)


def _drop_closed(work: UnitOfWork, tree: TreeRow, reason: str) -> None:
    work.change(tree)
    tree.state, tree.reason = DROPPED, reason
    group = work.group(tree)
    group.dropped += 1
    work.changed_groups.add((group.run_id, group.group_id))
    _record_closed(work, tree, group_closed=True)


def _end(work: UnitOfWork, tree: TreeRow, state: int, reason: str) -> None:
    work.change(tree)
    tree.state, tree.reason, tree.closed_ms = state, reason, work.now_ms
    tree.claim_due_ms = tree.growth_due_ms = tree.score_due_ms = tree.remind_due_ms = 0
    group = work.group(tree)
    group.done += 1
    group.dropped += state == DROPPED
    work.changed_groups.add((group.run_id, group.group_id))
    if group.state == GroupState.OPEN and group.done == group.size:
        all_dropped = group.dropped == group.size
        work.move_group(group, GroupState.DROPPED if all_dropped else GroupState.CLOSED, reason)
    work.ended.append(tree)
    _record_closed(work, tree, group_closed=group.state != GroupState.OPEN)


def consume(work: UnitOfWork, tree: TreeRow) -> None:
    """Mark a tree as held by a batch."""
    work.change(tree).state = CONSUMED


def consume_group(work: UnitOfWork, group: GroupRow) -> None:
    """Mark a group as held by a batch."""
    work.move_group(group, GroupState.CONSUMED)


def _record_closed(work: UnitOfWork, tree: TreeRow, *, group_closed: bool) -> None:
    work.outgoing.record_closing(
        events_pb2.TreeClosed(
            run_id=tree.run_id,
            tree_id=tree.tree_id,
            group_id=tree.group_id,
            state=tree_pb2.TreeState.ValueType(tree.state),
            reason=tree.reason,
            group_closed=group_closed,
            purpose=tree_pb2.TreePurpose.ValueType(tree.purpose),
            label=tree.label,
        )
    )
