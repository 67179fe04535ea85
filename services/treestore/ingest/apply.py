"""Application of accepted events to a UnitOfWork, and the release of what waited for them."""

import json

from banyan.segment import Kind
from banyan.v1 import tree_pb2
from banyan.wire.endings import from_wire
from services.treestore.events.events import (
    Event,
    GrownPlan,
    GrownSegment,
    LeafFinished,
    LeafScored,
    TreeGrown,
    TreeOpened,
)
from services.treestore.ingest import sharing
from services.treestore.lifecycle import assignments, transitions, unscorable
from services.treestore.storage import mapping
from services.treestore.storage.mapping import weights_to_text
from services.treestore.unit_of_work.parked_events import segment_key, tree_key
from services.treestore.unit_of_work.rows import (
    ANSWER,
    GROWING,
    SCORING,
    GroupRow,
    GroupState,
    SegmentHeader,
    TreeRow,
)
from services.treestore.unit_of_work.unit_of_work import UnitOfWork

_UNKNOWN_NODE = "unknown"  # the node of a claim that another store issued


def accept(work: UnitOfWork, event: Event) -> list[Event]:
    """Apply an event that the rules accepted, and return the events that waited for it."""
    match event:
        case TreeOpened():
            return _open_tree(work, event)
        case GrownSegment():
            return _add_segment(work, event)
        case GrownPlan():
            _add_plan(work, event)
        case LeafFinished():
            _finish_leaf(work, event)
        case TreeGrown():
            _end_growth(work, event)
        case LeafScored():
            work.put_score(event.message)
        case _:
            raise AssertionError(f"no fact for {type(event).__name__}")
    return []


def _open_tree(work: UnitOfWork, event: TreeOpened) -> list[Event]:
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
        score_deadline_ms=spec.score_deadline_ms or work.settings.score_deadline_ms,
        max_claims=spec.max_claims or work.settings.max_claims,
        opened_ms=work.now_ms,
        scorer_weights=tuple(spec.scorer_weights),
    )
    work.open_tree(tree, spec.group_scorers)
    work.new_trees.append(
        {
            "tree_id": spec.tree_id,
            "spec": spec.SerializeToString(),
            "row_digest": spec.row_digest,
            "scorers": json.dumps(list(spec.scorers)),
            "scorer_weights": weights_to_text(spec.scorer_weights),
        }
    )
    _join_group(work, event)
    _begin_growth(work, tree, spec)
    return work.parked.release(tree_key(tree.tree_id))


def _join_group(work: UnitOfWork, event: TreeOpened) -> None:
    spec = event.message.spec
    key = (spec.run_id, spec.group_id)
    group = work.groups.get(key)
    if group is None:
        group = GroupRow(
            run_id=spec.run_id,
            group_id=spec.group_id,
            label=spec.label,
            ordinal=spec.group_ordinal,
            purpose=int(spec.purpose),
            size=spec.group_size,
            take=spec.group_take,
            take_in_order=int(spec.take_in_order),
            last_step=spec.last_step if spec.HasField("last_step") else -1,
        )
        work.add_group(group)
        work.new_groups.add(key)
        tally = work.tally_to_change(group)
        tally.groups += 1
        tally.open += 1
    group.opened += 1
    work.tally_to_change(group)  # a group that was stored: its sums are written with it
    work.changed_groups.add(key)


def _begin_growth(work: UnitOfWork, tree: TreeRow, spec: tree_pb2.TreeSpec) -> None:
    """Queue a tree, unless its group was dropped, or was too old before its first tree came."""
    group = work.group(tree)
    if group.state == GroupState.OPEN and group.too_old(work.runs[tree.run_id].step):
        transitions.drop_stale_groups(work, [group])
    elif group.state == GroupState.DROPPED:
        transitions.drop_open(work, tree, group.reason)
    else:
        assignments.queue(work, tree, spec)


def _keep_claim(work: UnitOfWork, tree: TreeRow, epoch: int) -> None:
    """Extend the claim of a tree that made progress, unless it was returned.

    An epoch that this store never issued comes from a store that was lost.
    """
    work.change(tree)
    if epoch > tree.claim_epoch:
        tree.claim_epoch, tree.claim_node = epoch, _UNKNOWN_NODE
    if tree.state == GROWING and tree.claim_node:
        tree.claim_due_ms = work.now_ms + work.settings.claim_ms
        tree.growth_due_ms = tree.claim_due_ms + work.settings.requeue_ms


def _add_segment(work: UnitOfWork, event: GrownSegment) -> list[Event]:
    segment, tree = event.segment, work.trees[event.tree_id]
    above = work.headers.get(segment.parent)
    header = SegmentHeader(
        id=segment.id,
        tree_id=tree.tree_id,
        parent=segment.parent,
        fork=segment.fork,
        ordinal=segment.ordinal,
        length=len(segment),
        kind=int(segment.kind),
        finish=int(segment.finish),
        prefix_sampled=above.answer_tokens(segment.fork) if above else 0,
    )
    work.add_header(header)
    work.new_segments.append(
        {
            **mapping.SEGMENT.to_columns(event.message.segment),
            "length": header.length,
            "prefix_sampled": header.prefix_sampled,
            "claim_epoch": event.message.claim_epoch,
            "stored_ms": work.now_ms,
        }
    )
    _keep_claim(work, tree, event.message.claim_epoch)
    if segment.policy and tree.claim_node:
        work.grown[tree.run_id, tree.claim_node] += 0
    tree.idle_claims = 0
    _count_tokens(work, tree, event)
    return work.parked.release(segment_key(segment.id))


def _count_tokens(work: UnitOfWork, tree: TreeRow, event: GrownSegment) -> None:
    tree.segments += 1
    tally = work.tally_to_change(tree)
    if event.segment.kind is Kind.POLICY:
        tree.sampled_tokens += len(event.segment)
        tally.sampled_tokens += len(event.segment)
        tree.policy_step = max(tree.policy_step, event.segment.policy_step)
    elif event.segment.kind is Kind.PROMPT:
        tree.prompt_tokens += len(event.segment)


def _add_plan(work: UnitOfWork, event: GrownPlan) -> None:
    plan = event.message.plan
    work.new_plans.append(
        {
            "tree_id": event.tree_id,
            "claim_epoch": plan.claim_epoch,
            "number": plan.number,
            "record": plan.SerializeToString(),
        }
    )


def _finish_leaf(work: UnitOfWork, event: LeafFinished) -> None:
    leaf = work.put_leaf(event.tree_id, event.leaf)
    leaf.finished = True
    leaf.reason = event.message.reason
    leaf.completion = event.message.completion
    tree = work.trees[event.tree_id]
    _keep_claim(work, tree, event.message.claim_epoch)
    if event.message.HasField("ending"):
        unscorable.put_all(work, tree, event.leaf, str(from_wire(event.message.ending)))


def _end_growth(work: UnitOfWork, event: TreeGrown) -> None:
    tree = work.trees[event.tree_id]
    _keep_claim(work, tree, event.message.claim_epoch)
    tree.state = SCORING
    tree.grown_epoch = event.message.claim_epoch
    tree.grown_node = event.message.node_id
    tree.grown_digest = event.leaves_digest()
    tree.leaves = len(event.leaves)
    tree.score_due_ms = work.now_ms + tree.score_deadline_ms
    tree.remind_due_ms = work.now_ms + tree.score_deadline_ms // 2
    tree.claim_due_ms = tree.growth_due_ms = 0
    work.grown[tree.run_id, tree.grown_node] += 1
    tally = work.tally_to_change(tree)
    for leaf in event.leaves:
        work.put_leaf(tree.tree_id, leaf).listed = True
        tally.path_tokens += work.headers[leaf.segment].answer_tokens(leaf.end)
    for place in event.inside:
        work.put_leaf(tree.tree_id, place)  # no leaf of the tree, so it is not listed
    tally.leaves += len(event.leaves)
    reached = sharing.reached(work.headers, event.leaves)
    tally.unique_tokens += sharing.tokens(work.headers, reached, ANSWER)
    tally.used_tokens += sharing.tokens(work.headers, reached, {int(Kind.POLICY)})
    if event.leaves:  # a tree that is dropped, or has no leaf, shares its prompt with no path
        tally.prompt_tokens += tree.prompt_tokens
    tally.prompt_path_tokens += tree.prompt_tokens * len(event.leaves)
