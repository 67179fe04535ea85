"""Stored trees as messages: whole, and in one line."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, bindparam, func, select

from banyan import order
from banyan.errors import InvalidInput, NotFound
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.storage import schema
from services.treestore.unit_of_work.load import rows_in
from services.treestore.unit_of_work.rows import GROWING

_LIST_LIMIT = 100
_PREFIX_BYTES = 4
_OF = schema.segments.c
_LARGE = (_OF.tokens, _OF.logprobs, _OF.sampled_logprobs, _OF.entropies, _OF.signals)
BYTES = sum((func.length(column) for column in _LARGE), 4 * func.length(_OF.text) + 512)
"""Of a segment in a message, at most: a character has up to four bytes, and ids and settings some hundred."""
_PLACES = select(_OF.id, _OF.parent, _OF.fork, _OF.ordinal, BYTES.label("bytes")).where(
    _OF.tree_id == bindparam("tree")
)


def read(
    connection: Connection,
    tree_ids: Sequence[bytes],
    plans: bool = False,
    bare: Collection[bytes] = (),
) -> list[tree_pb2.Tree]:
    """Whole trees, in the order of the ids; ids that are not there are left out. Their plans come only if asked for.

    Those of `bare` come without segments.
    """
    segments = _by_tree(connection, schema.segments, [i for i in tree_ids if i not in bare])
    for tree_id in bare:
        segments[tree_id] = places(connection, tree_id)
    leaves, scores = (
        _by_tree(connection, table, tree_ids) for table in (schema.leaves, schema.scores)
    )
    rows = {row.tree_id: row for row in rows_in(connection, schema.trees, "tree_id", tree_ids)}
    found = [
        to_wire(rows[i], segments[i], leaves[i], scores[i], i in bare)
        for i in tree_ids
        if i in rows
    ]
    given = rooms_of(connection, tree_ids)
    for tree in found:
        if tree.spec.tree_id in given:
            tree.room.CopyFrom(given[tree.spec.tree_id])
    for tree in found if plans else ():
        tree.plans.extend(_plans(connection, tree.spec.tree_id))
    return found


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
    found: dict[bytes, list[Row[Any]]] = defaultdict(list)
    for row in rows_in(connection, table, "tree_id", tree_ids):
        found[row.tree_id].append(row)
    return found


def places(connection: Connection, tree_id: bytes) -> list[Row[Any]]:
    """Where the segments of a tree are, and how many bytes each has."""
    return list(connection.execute(_PLACES, {"tree": tree_id}))


def to_wire(
    tree: Row[Any],
    segments: Sequence[Row[Any]],
    leaves: Sequence[Row[Any]],
    scores: Sequence[Row[Any]],
    bare: bool = False,
) -> tree_pb2.Tree:
    """A tree's message; with `bare` without its segments. Segments, leaves and scores come in DFS order, so that it is the
    same however they arrived."""
    paths = order.paths(segments)
    counted = [leaf for leaf in leaves if leaf.listed or tree.state == GROWING]
    return tree_pb2.Tree(
        spec=tree_pb2.TreeSpec.FromString(tree.spec),
        state=tree.state,
        reason=tree.reason,
        segments=[]
        if bare
        else [segment_to_wire(row) for row in sorted(segments, key=lambda r: paths[r.id])],
        leaves=[
            tree_pb2.LeafRef(segment=row.segment, end=row.end)
            for row in sorted(counted, key=lambda r: order.at(paths, r.segment, r.end))
        ],
        scores=[
            score_to_wire(r)
            for r in sorted(scores, key=lambda r: (order.at(paths, r.segment, r.end), r.scorer))
        ],
        claim_epoch=tree.claim_epoch,
        opened_unix_ms=tree.opened_ms,
        closed_unix_ms=tree.closed_ms,
    )


def segment_to_wire(row: Row[Any]) -> tree_pb2.Segment:
    """Message of a segment's row."""
    return tree_pb2.Segment(
        id=row.id,
        tree_id=row.tree_id,
        parent=row.parent,
        fork=row.fork,
        ordinal=row.ordinal,
        kind=row.kind,
        origin=row.origin,
        tokens=row.tokens,
        logprobs=row.logprobs,
        sampled_logprobs=row.sampled_logprobs,
        policy=tree_pb2.PolicyRef(
            learner_epoch=row.policy_epoch, step=row.policy_step, digest=row.policy_digest
        ),
        sampling=tree_pb2.SamplingParams.FromString(row.sampling),
        finish=row.finish,
        producer=row.producer,
        text=row.text,
        cached_tokens=row.cached_tokens,
        entropies=row.entropies,
        signals=tree_pb2.TokenSignals.FromString(row.signals) if row.signals else None,
    )


def lighten(segment: tree_pb2.Segment) -> None:
    """Takes out the signals that only who grows a tree needs, ten times the rest; the learner reads the head's scores."""
    head = segment.signals.head
    segment.ClearField("signals")
    if head:
        segment.signals.head = head


def score_to_wire(row: Row[Any]) -> tree_pb2.ScoredLeaf:
    """Message of a score's row."""
    return tree_pb2.ScoredLeaf(
        leaf=tree_pb2.LeafRef(segment=row.segment, end=row.end),
        scorer=row.scorer,
        scorer_version=row.scorer_version,
        score=tree_pb2.Score(
            state=row.state,
            value=row.value,
            parts=json.loads(row.parts),
            reason=row.reason,
            repair=tree_pb2.Repair.FromString(row.repair) if row.repair else None,
        ),
    )


def rooms_of(connection: Connection, tree_ids: Iterable[bytes]) -> dict[bytes, tree_pb2.TreeRoom]:
    """The rooms of those trees that were given any."""
    return {
        row.tree_id: room_to_wire(row)
        for row in rows_in(connection, schema.rooms, "tree_id", tree_ids)
    }


def room_to_wire(row: Row[Any]) -> tree_pb2.TreeRoom:
    """Message of a room's row."""
    return tree_pb2.TreeRoom(leaves=row.leaves, final=row.final, round=row.round)


def find(connection: Connection, table: Any, column: Any, prefix: bytes, what: str) -> bytes:
    """The id that starts with `prefix`. Raises NotFound if there is none or more than one."""
    if len(prefix) < _PREFIX_BYTES:
        raise InvalidInput(
            f"{what} {prefix.hex()!r} is too short: give at least {2 * _PREFIX_BYTES} hex digits"
        )
    last = prefix + b"\xff" * (32 - len(prefix))
    found = list(
        connection.scalars(
            select(column).where(column >= prefix, column <= last).order_by(column).limit(2)
        )
    )
    if len(found) != 1:
        raise NotFound(
            f"{what} {prefix.hex()} is ambiguous; give more of it"
            if found
            else f"there is no {what} {prefix.hex()}"
        )
    return bytes(found[0])


def matching(filters: ts.TreeFilter) -> list[ColumnElement[bool]]:
    """A filter as conditions."""
    trees = schema.trees
    conditions: list[ColumnElement[bool]] = []
    if filters.run_id:
        conditions.append(trees.c.run_id == filters.run_id)
    if filters.states:
        conditions.append(trees.c.state.in_([int(s) for s in filters.states]))
    if filters.purpose:
        conditions.append(trees.c.purpose == int(filters.purpose))
    if filters.label:
        conditions.append(trees.c.label == filters.label)
    if filters.tree_ids:
        conditions.append(trees.c.tree_id.in_(list(filters.tree_ids)))
    return conditions


def ids(connection: Connection, filters: ts.TreeFilter) -> list[bytes]:
    """Ids of the trees, in order of opening; all of them unless the filter has a limit."""
    query: Select[Any] = (
        select(schema.trees.c.tree_id).where(*matching(filters)).order_by(schema.trees.c.n)
    )
    return list(connection.scalars(query.limit(filters.limit) if filters.limit else query))


def summaries(connection: Connection, filters: ts.TreeFilter) -> ts.ListTreesResponse:
    """Trees in one line each, newest first."""
    trees = schema.trees
    query = (
        select(trees)
        .where(*matching(filters))
        .order_by(trees.c.n.desc())
        .limit(filters.limit or _LIST_LIMIT)
    )
    return ts.ListTreesResponse(trees=[_summary(row) for row in connection.execute(query)])


def _summary(row: Row[Any]) -> ts.TreeSummary:
    summary = ts.TreeSummary(
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
    )
    if row.mean_reward is not None:
        summary.mean_reward = row.mean_reward
    return summary
