"""Makes an accepted event a fact in the Book, and releases what waited for it."""

import json

from banyan.segment import Kind
from banyan.v1 import events_pb2, tree_pb2
from services.treestore.events.events import (
    Event,
    GrownPlan,
    GrownSegment,
    LeafFinished,
    LeafScored,
    TreeGrown,
    TreeOpened,
)
from services.treestore.ingest.rules import score_row
from services.treestore.lifecycle import assignments, transitions
from services.treestore.unit_of_work.rows import (
    ANSWER,
    GROWING,
    SCORING,
    GroupRow,
    GroupState,
    SegmentHeader,
    TreeRow,
)
from services.treestore.unit_of_work.unit_of_work import UnitOfWork, segment_key, tree_key

_UNKNOWN = "unknown"  # the node of a claim that another store issued


def accept(book: UnitOfWork, event: Event) -> list[Event]:
    """Applies an event that the rules accepted; the events that waited for it."""
    match event:
        case TreeOpened():
            return _opened(book, event)
        case GrownSegment():
            return _grew(book, event)
        case GrownPlan():
            return _planned(book, event)
        case LeafFinished():
            return _ended(book, event)
        case TreeGrown():
            return _grown(book, event)
        case LeafScored():
            return _scored(book, event)
    raise AssertionError(f"no fact for {type(event).__name__}")


def _opened(book: UnitOfWork, event: TreeOpened) -> list[Event]:
    spec = event.message.spec
    tree = TreeRow(
        tree_id=spec.tree_id,
        run_id=spec.run_id,
        group_id=spec.group_id,
        tree_index=spec.index,
        purpose=int(spec.purpose),
        label=spec.label,
        traceparent=spec.traceparent,
        scorers=tuple(spec.scorers),
        score_deadline_ms=spec.score_deadline_ms or book.settings.score_deadline_ms,
        max_claims=spec.max_claims or book.settings.max_claims,
        opened_ms=book.now_ms,
    )
    book.add_tree(book.change(tree))
    book.new_trees.append(
        {
            "tree_id": spec.tree_id,
            "spec": spec.SerializeToString(),
            "row_digest": spec.row_digest,
            "scorers": json.dumps(list(spec.scorers)),
        }
    )
    _join_group(book, event)
    _begin(book, tree, spec)
    return book.release(tree_key(tree.tree_id))


def _begin(book: UnitOfWork, tree: TreeRow, spec: tree_pb2.TreeSpec) -> None:
    """Queue a tree for growing, unless its group is given up already, or was too old before anything of it was heard."""
    group = book.group(tree)
    if group.state == GroupState.OPEN and group.too_old(book.runs[tree.run_id].step):
        transitions.expire(book, [group])
    elif group.state == GroupState.DROPPED:
        transitions.drop(book, tree, group.reason)
    else:
        assignments.queue(book, tree, spec)


def _join_group(book: UnitOfWork, event: TreeOpened) -> None:
    spec = event.message.spec
    key = (spec.run_id, spec.group_id)
    group = book.groups.get(key)
    if group is None:
        group = GroupRow(
            spec.run_id,
            spec.group_id,
            spec.label,
            spec.group_ordinal,
            int(spec.purpose),
            spec.group_size,
        )
        group.take, group.take_in_order = spec.group_take, int(spec.take_in_order)
        group.last_step = spec.last_step if spec.HasField("last_step") else -1
        book.add_group(group)
        book.new_groups.add(key)
        tally = book.tally(group)
        tally.groups += 1
        tally.open += 1
    group.opened += 1
    book.tally(group)
    book.changed_groups.add(key)


def _hold(book: UnitOfWork, tree: TreeRow, epoch: int) -> None:
    """Progress keeps a claim that was not handed back; an epoch that this store never issued came from one that was lost."""
    book.change(tree)
    if epoch > tree.claim_epoch:
        tree.claim_epoch, tree.claim_node = epoch, _UNKNOWN
    if tree.state == GROWING and tree.claim_node:
        tree.claim_due_ms = book.now_ms + book.settings.claim_ms
        tree.growth_due_ms = tree.claim_due_ms + book.settings.requeue_ms


def _grew(book: UnitOfWork, event: GrownSegment) -> list[Event]:
    segment, tree = event.segment, book.trees[event.tree_id]
    above = book.heads.get(segment.parent)
    sampled = above.prefix_sampled + (segment.fork if above.kind in ANSWER else 0) if above else 0
    head = SegmentHeader(
        segment.id,
        tree.tree_id,
        segment.parent,
        segment.fork,
        segment.ordinal,
        len(segment),
        int(segment.kind),
        sampled,
    )
    book.add_head(head)
    book.new_segments.append(_segment_values(book, event, head))
    _hold(book, tree, event.message.claim_epoch)
    tree.idle_claims = 0
    _count(book, tree, event)
    return book.release(segment_key(segment.id))


def _segment_values(
    book: UnitOfWork, event: GrownSegment, head: SegmentHeader
) -> dict[str, object]:
    message = event.message.segment
    return {
        "id": head.id,
        "tree_id": head.tree_id,
        "parent": head.parent,
        "fork": head.fork,
        "ordinal": head.ordinal,
        "kind": head.kind,
        "origin": int(message.origin),
        "length": head.length,
        "prefix_sampled": head.prefix_sampled,
        "tokens": message.tokens,
        "logprobs": message.logprobs,
        "sampled_logprobs": message.sampled_logprobs,
        "policy_epoch": message.policy.learner_epoch,
        "policy_step": message.policy.step,
        "policy_digest": message.policy.digest,
        "sampling": message.sampling.SerializeToString(),
        "finish": int(message.finish),
        "producer": message.producer,
        "text": message.text,
        "cached_tokens": message.cached_tokens,
        "entropies": message.entropies,
        "signals": message.signals.SerializeToString() if message.HasField("signals") else b"",
        "claim_epoch": event.message.claim_epoch,
        "stored_ms": book.now_ms,
    }


def _count(book: UnitOfWork, tree: TreeRow, event: GrownSegment) -> None:
    tree.segments += 1
    tally = book.tally(tree)
    if event.segment.kind is Kind.POLICY:
        tree.sampled_tokens += len(event.segment)
        tally.sampled_tokens += len(event.segment)
        tree.policy_step = max(tree.policy_step, event.segment.policy_step)
    elif event.segment.kind is Kind.PROMPT:
        tree.prompt_tokens += len(event.segment)


def _planned(book: UnitOfWork, event: GrownPlan) -> list[Event]:
    plan = event.message.plan
    record = plan.SerializeToString()
    values = {
        "tree_id": event.tree_id,
        "claim_epoch": plan.claim_epoch,
        "number": plan.number,
        "record": record,
    }
    book.new_plans.append(values)
    return []


def _ended(book: UnitOfWork, event: LeafFinished) -> list[Event]:
    leaf = book.put_leaf(event.tree_id, event.leaf)
    leaf.finished, leaf.reason, leaf.completion = (
        True,
        event.message.reason,
        event.message.completion,
    )
    _hold(book, book.trees[event.tree_id], event.message.claim_epoch)
    return []


def _grown(book: UnitOfWork, event: TreeGrown) -> list[Event]:
    tree = book.trees[event.tree_id]
    _hold(book, tree, event.message.claim_epoch)
    tree.state, tree.grown_epoch, tree.grown_node = (
        SCORING,
        event.message.claim_epoch,
        event.message.node_id,
    )
    book.grew[tree.run_id, tree.grown_node] += 1
    tree.grown_digest, tree.leaves = event.leaves_digest(), len(event.leaves)
    tree.score_due_ms = book.now_ms + tree.score_deadline_ms
    tree.remind_due_ms = book.now_ms + tree.score_deadline_ms // 2
    tree.claim_due_ms = tree.growth_due_ms = 0
    tally = book.tally(tree)
    for leaf in event.leaves:
        book.put_leaf(tree.tree_id, leaf).listed = True
        head = book.heads[leaf.segment]
        tally.path_tokens += head.prefix_sampled + (leaf.end if head.kind in ANSWER else 0)
    for place in event.inside:
        book.put_leaf(tree.tree_id, place)  # no leaf of the tree: it is not listed
    tally.leaves += len(event.leaves)
    tally.prompt_tokens += (
        tree.prompt_tokens
    )  # of trees that are grown: one that is given up shared nothing
    tally.prompt_path_tokens += tree.prompt_tokens * len(event.leaves)
    return []


def _scored(book: UnitOfWork, event: LeafScored) -> list[Event]:
    message: events_pb2.LeafScored = event.message
    book.put_score(
        event.tree_id,
        event.leaf,
        message.scored.scorer,
        score_row(event),
        parts=json.dumps(dict(message.scored.score.parts), sort_keys=True),
        repair=message.scored.score.repair.SerializeToString()
        if message.scored.score.HasField("repair")
        else None,
        verifier=message.verifier_id,
        duration_ms=message.duration_ms,
    )
    return []
