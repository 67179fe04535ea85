"""Stored trees as messages: whole, and as summaries."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    bindparam,
    func,
    select,
    union_all,
)

from banyan import order
from banyan.errors import InvalidInput, NotFound
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.storage import mapping, schema
from services.treestore.storage.sql import rows_in
from services.treestore.unit_of_work.rows import GROWING

_LIST_LIMIT = 100
_PREFIX_BYTES = 4
_ID_BYTES = 32
_SEGMENTS = schema.segments.c
_TENSOR_BYTES = [func.length(_SEGMENTS[name]) for name in mapping.TENSOR_COLUMNS]
BYTES = sum(_TENSOR_BYTES, 4 * func.length(_SEGMENTS.text) + 512)
"""Upper bound of a segment's bytes in a message: up to 4 a character, and some hundred for ids and
settings.
"""
_PLACES = select(*(_SEGMENTS[name] for name in mapping.PLACE_COLUMNS), BYTES.label("bytes")).where(
    _SEGMENTS.tree_id == bindparam("tree")
)


def read(
    connection: Connection,
    tree_ids: Sequence[bytes],
    plans: bool = False,
    bare: Collection[bytes] = (),
    *,
    rescores: bool = False,
) -> list[tree_pb2.Tree]:
    """Return whole trees, in the order of the ids; unknown ids are left out.

    plans: return the executed plans, too
    rescores: return the scores that were given after the run's own, too
    bare: ids of trees to return without segments
    """
    with_segments = [tree_id for tree_id in tree_ids if tree_id not in bare]
    segments = _by_tree(connection, schema.segments, with_segments)
    for tree_id in bare:
        segments[tree_id] = places(connection, tree_id)
    leaves = _by_tree(connection, schema.leaves, tree_ids)
    scores = _by_tree(connection, schema.scores, tree_ids)
    rows = {row.tree_id: row for row in rows_in(connection, schema.trees, "tree_id", tree_ids)}
    trees = [
        to_wire(rows[i], segments[i], leaves[i], scores[i], bare=i in bare)
        for i in tree_ids
        if i in rows
    ]
    budgets = budgets_of(connection, tree_ids)
    again = _rescores(connection, tree_ids) if rescores else {}
    for tree in trees:
        tree.rescores.extend(again.get(tree.spec.tree_id, ()))
        if tree.spec.tree_id in budgets:
            tree.room.CopyFrom(budgets[tree.spec.tree_id])
        if plans:
            tree.plans.extend(_plans(connection, tree.spec.tree_id))
    return trees


def _rescores(
    connection: Connection, tree_ids: Iterable[bytes]
) -> dict[bytes, list[tree_pb2.Rescore]]:
    rows = _by_tree(connection, schema.rescores, tree_ids)
    return {
        tree_id: [mapping.RESCORE.from_row(row) for row in found] for tree_id, found in rows.items()
    }


def _plans(connection: Connection, tree_id: bytes) -> list[tree_pb2.PlanRecord]:
    table = schema.plans
    rows = (
        select(table.c.record)
        .where(table.c.tree_id == tree_id)
        .order_by(table.c.claim_epoch, table.c.number)
    )
    return [tree_pb2.PlanRecord.FromString(record) for record in connection.scalars(rows)]


def _by_tree(
    connection: Connection, table: Any, tree_ids: Iterable[bytes]
) -> dict[bytes, list[Row[Any]]]:
    rows: dict[bytes, list[Row[Any]]] = defaultdict(list)
    for row in rows_in(connection, table, "tree_id", tree_ids):
        rows[row.tree_id].append(row)
    return rows


def places(connection: Connection, tree_id: bytes) -> list[Row[Any]]:
    """Return the places of a tree's segments, and the bytes of each."""
    return list(connection.execute(_PLACES, {"tree": tree_id}))


def to_wire(
    tree: Row[Any],
    segments: Sequence[Row[Any]],
    leaves: Sequence[Row[Any]],
    scores: Sequence[Row[Any]],
    *,
    bare: bool = False,
) -> tree_pb2.Tree:
    """Return a tree's message; with `bare` without its segments.

    Segments, leaves and scores are in depth-first order, whatever the order of their arrival.
    """
    paths = order.paths(segments)
    shown = [] if bare else sorted(segments, key=lambda row: paths[row.id])
    counted = [leaf for leaf in leaves if leaf.listed or tree.state == GROWING]
    counted.sort(key=lambda row: order.at(paths, row.segment, row.end))
    by_place = sorted(scores, key=lambda row: (order.at(paths, row.segment, row.end), row.scorer))
    return tree_pb2.Tree(
        spec=tree_pb2.TreeSpec.FromString(tree.spec),
        state=tree.state,
        reason=tree.reason,
        segments=[segment_to_wire(row) for row in shown],
        leaves=[tree_pb2.LeafRef(segment=row.segment, end=row.end) for row in counted],
        scores=[_timed_score(row) for row in by_place],
        claim_epoch=tree.claim_epoch,
        opened_unix_ms=tree.opened_ms,
        closed_unix_ms=tree.closed_ms,
    )


def segment_to_wire(row: Row[Any]) -> tree_pb2.Segment:
    """Return the message of a segment's row."""
    segment: tree_pb2.Segment = mapping.SEGMENT.from_row(row)
    return segment


def score_to_wire(row: Row[Any]) -> tree_pb2.ScoredLeaf:
    """Return the message of a score's row."""
    scored: tree_pb2.ScoredLeaf = mapping.SCORED_LEAF.from_row(row)
    return scored


def _timed_score(row: Row[Any]) -> tree_pb2.ScoredLeaf:
    """Return the message of a score's row, with the time that it took."""
    scored = score_to_wire(row)
    scored.duration_ms = row.duration_ms
    return scored


def drop_causes(scores: Iterable[tree_pb2.ScoredLeaf]) -> None:
    """Leave of each reason its first word, for nodes: the rest may quote a row or a server. A time
    that is another one in each run is nothing that they may decide by.
    """
    for scored in scores:
        scored.score.reason = scored.score.reason.partition(":")[0]
        scored.ClearField("duration_ms")


def drop_signals(segment: tree_pb2.Segment) -> None:
    """Remove the signals that only growth needs, ten times the rest; the learner reads the head's
    scores.
    """
    head = segment.signals.head
    segment.ClearField("signals")
    if head:
        segment.signals.head = head


def budgets_of(connection: Connection, tree_ids: Iterable[bytes]) -> dict[bytes, tree_pb2.TreeRoom]:
    """Return the growth budgets of those trees that were granted any."""
    return {
        row.tree_id: budget_to_wire(row)
        for row in rows_in(connection, schema.rooms, "tree_id", tree_ids)
    }


def budget_to_wire(row: Row[Any]) -> tree_pb2.TreeRoom:
    """Return the message of a growth budget's row."""
    return tree_pb2.TreeRoom(leaves=row.leaves, final=row.final, round=row.round)


def find(connection: Connection, column: ColumnElement[bytes], prefix: bytes, noun: str) -> bytes:
    """Return the only id in a column that starts with `prefix`.

    noun: name of the ids in messages. Raises InvalidInput for a short prefix, and NotFound unless
    exactly one id starts with it.
    """
    if len(prefix) < _PREFIX_BYTES:
        raise InvalidInput(
            f"{noun} {prefix.hex()!r} is too short: give at least {2 * _PREFIX_BYTES} hex digits"
        )
    last = prefix + b"\xff" * (_ID_BYTES - len(prefix))
    matches = select(column).where(column >= prefix, column <= last).order_by(column).limit(2)
    ids = list(connection.scalars(matches))
    if not ids:
        raise NotFound(f"there is no {noun} {prefix.hex()}")
    if len(ids) > 1:
        raise NotFound(f"{noun} {prefix.hex()} is ambiguous; give more of it")
    return bytes(ids[0])


def conditions(filters: ts.TreeFilter) -> list[ColumnElement[bool]]:
    """Return the conditions of a filter. Raise InvalidInput for a batch of no run."""
    trees = schema.trees.c
    terms: list[ColumnElement[bool]] = []
    of_batch = filters.HasField("batch")
    if of_batch:
        terms.append(_of_batch(filters))
    elif filters.run_id:
        terms.append(trees.run_id == filters.run_id)
    if filters.states:
        column = trees.state + 0 if of_batch else trees.state  # its own index finds a batch
        terms.append(column.in_([int(state) for state in filters.states]))
    if filters.purpose:
        # Most trees have the same purpose: its index is for lists without a better filter, but
        # SQLite prefers it to those of one column less.
        narrower = filters.states or filters.row_digest or filters.group_id or filters.tree_ids
        by_step = filters.HasField("policy_step")
        purpose = trees.purpose + 0 if narrower or by_step else trees.purpose
        terms.append(purpose == int(filters.purpose))
    if filters.label:
        terms.append(trees.label == filters.label)
    if filters.tree_ids:
        terms.append(trees.tree_id.in_(list(filters.tree_ids)))
    if filters.before:
        terms.append(trees.n < filters.before)
    if filters.HasField("policy_step"):
        terms.append(trees.policy_step == filters.policy_step)
    if filters.group_id:
        terms.append(trees.group_id == filters.group_id)
    if filters.row_digest:
        terms.append(trees.row_digest == filters.row_digest)
    return terms


def _of_batch(filters: ts.TreeFilter) -> ColumnElement[bool]:
    """Return the condition that a batch consumed or replayed a tree, which is then of its run."""
    if not filters.run_id:
        raise InvalidInput(f"batch {filters.batch} is of no run: name the run, too")
    members = (
        select(used.tree_id).where(used.run_id == filters.run_id, used.ordinal == filters.batch)
        for used in (schema.batch_trees.c, schema.batch_replays.c)
    )
    return schema.trees.c.tree_id.in_(union_all(*members))


def ids(connection: Connection, filters: ts.TreeFilter) -> list[bytes]:
    """Return the ids of trees, in order of opening; all of them unless the filter has a limit."""
    chosen = select(schema.trees.c.tree_id).where(*conditions(filters))
    query: Select[Any] = chosen.order_by(_number(filters))
    return list(connection.scalars(query.limit(filters.limit) if filters.limit else query))


def _number(filters: ts.TreeFilter) -> ColumnElement[int]:
    """Return the number by which a list is in order.

    SQLite takes an index that gives the order, even where another finds the few trees of a group or
    of a batch: it has none for a sum.
    """
    number = schema.trees.c.n
    return number + 0 if filters.group_id or filters.HasField("batch") else number


def summaries(connection: Connection, filters: ts.TreeFilter) -> ts.ListTreesResponse:
    """Return summaries of the trees, newest first."""
    trees = schema.trees
    query = (
        select(trees)
        .where(*conditions(filters))
        .order_by(_number(filters).desc())
        .limit(filters.limit or _LIST_LIMIT)
    )
    response = ts.ListTreesResponse(trees=[_summary(row) for row in connection.execute(query)])
    if filters.tree_ids or filters.group_id:
        _count_scores(connection, response.trees)
    return response


def _count_scores(connection: Connection, listed: Sequence[ts.TreeSummary]) -> None:
    """Add the number of scores to summaries, by which a watcher of few trees sees a new one."""
    table, ids = schema.scores, [summary.tree_id for summary in listed]
    query = (
        select(table.c.tree_id, func.count())
        .where(table.c.tree_id.in_(ids))
        .group_by(table.c.tree_id)
    )
    counts = {row[0]: row[1] for row in connection.execute(query)}
    for summary in listed:
        summary.scores = counts.get(summary.tree_id, 0)


def _summary(row: Row[Any]) -> ts.TreeSummary:
    return ts.TreeSummary(
        tree_id=row.tree_id,
        run_id=row.run_id,
        group_id=row.group_id,
        state=row.state,
        reason=row.reason,
        leaves=row.leaves,
        segments=row.segments,
        sampled_tokens=row.sampled_tokens,
        purpose=row.purpose,
        label=row.label,
        policy_step=row.policy_step,
        claim_epoch=row.claim_epoch,
        mean_reward=row.mean_reward,
        number=row.n,
        opened_unix_ms=row.opened_ms,
        closed_unix_ms=row.closed_ms,
        row_digest=row.row_digest,
    )
