"""Loading of the parts of trees: segments, leaves and scores."""

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import BindParameter, Connection, Select, Table, bindparam, select

from banyan.reasons import Reason
from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from services.treestore.events.events import (
    Event,
    GrownPlan,
    GrownSegment,
    LeafFinished,
    LeafScored,
    TreeGrown,
    TreeOpened,
)
from services.treestore.storage import schema
from services.treestore.storage.sql import chunks, pair_in
from services.treestore.unit_of_work import completion
from services.treestore.unit_of_work.rows import (
    SCORING,
    LeafRow,
    ScoreRow,
    SegmentHeader,
    TreeParts,
)
from services.treestore.unit_of_work.segment_bounds import BROKEN
from services.treestore.unit_of_work.unit_of_work import UnitOfWork

LOST = (Reason.ORDINAL_TAKEN, Reason.PARENT_REFUSED, *BROKEN)
"""Reasons for which a segment is refused for good, and its children with it."""

_KEYS: BindParameter[Any] = bindparam("keys", expanding=True)


def _of_trees(table: Table, *names: str) -> Select[Any]:
    """Return the statement that reads columns of trees' rows, in order of arrival."""
    columns = (table.c[name] for name in names)
    return select(*columns).where(table.c.tree_id.in_(_KEYS)).order_by(table.c.n)


# Made once: building a statement of many columns costs more than running it.
_HEADERS = select(*(schema.segments.c[name] for name in SegmentHeader.__dataclass_fields__))
_HEADERS_BY_ID = _HEADERS.where(schema.segments.c.id.in_(_KEYS))
_HEADERS_BY_PLACE = {
    dialect: _HEADERS.where(pair_in(schema.segments, "tree_id", "parent", "keys", dialect))
    for dialect in ("sqlite", "postgresql")
}
_HEADERS_BY_TREE = _HEADERS.where(schema.segments.c.tree_id.in_(_KEYS))
_PLACE = ("tree_id", "segment", "end")
_LEAVES = _of_trees(schema.leaves, *_PLACE, "finished", "listed", "reason")
_COMPLETIONS = _of_trees(schema.leaves, *_PLACE, "completion")
_SCORES = _of_trees(schema.scores, *_PLACE, "scorer", "state", "value", "reason", "scorer_version")
_SPECS = select(schema.trees.c.tree_id, schema.trees.c.spec).where(
    schema.trees.c.tree_id.in_(_KEYS)
)
_LOST_SEGMENTS = select(schema.refused.c.segment).where(
    schema.refused.c.segment.in_(_KEYS),
    schema.refused.c.kind == "segment",
    schema.refused.c.reason.in_(LOST),
)


def load_segments(connection: Connection, work: UnitOfWork, events: Iterable[Event]) -> None:
    """Load the headers of the segments that the events name, and of those at the places that they
    want.
    """
    named, places = set[bytes](), set[tuple[bytes, bytes]]()
    whole = set[bytes]()
    for event in events:
        match event:
            case GrownSegment():
                named |= {event.segment.id, event.segment.parent} - {b""}
                places.add((event.tree_id, event.segment.parent))
            case TreeGrown():
                # Its actions must have ended, and its paths are counted.
                whole.add(event.tree_id)
                named |= {leaf.segment for leaf in (*event.leaves, *event.inside)}
            case LeafFinished() if event.message.HasField("ending"):
                whole.add(event.tree_id)  # its path, and whether it has an answer
                named.add(event.leaf.segment)
            case LeafFinished() | LeafScored():
                named.add(event.leaf.segment)
    load_headers(connection, work, named, places)
    _load_trees(connection, work, whole)
    for chunk in chunks(sorted(named)):
        work.lost |= set(connection.scalars(_LOST_SEGMENTS, {"keys": chunk}))


def load_headers(
    connection: Connection, work: UnitOfWork, named: set[bytes], places: set[tuple[bytes, bytes]]
) -> None:
    """Load the headers of segments by id (`named`), and by tree and parent (`places`)."""
    for chunk in chunks(sorted(named)):
        for row in connection.execute(_HEADERS_BY_ID, {"keys": chunk}):
            work.add_header(SegmentHeader(**row._mapping))
    by_place = _HEADERS_BY_PLACE[connection.dialect.name]
    for pairs in chunks(sorted(places)):
        for row in connection.execute(by_place, {"keys": pairs}):
            work.add_header(SegmentHeader(**row._mapping))


def _load_trees(connection: Connection, work: UnitOfWork, tree_ids: Collection[bytes]) -> None:
    """Load the headers of all segments of trees."""
    for chunk in chunks(sorted(tree_ids)):
        for row in connection.execute(_HEADERS_BY_TREE, {"keys": chunk}):
            work.add_header(SegmentHeader(**row._mapping))


def needs_scores(work: UnitOfWork, event: Event) -> bool:
    """Return True if an event needs its tree's leaves and scores, itself or to close the tree."""
    if not isinstance(event, (GrownSegment, TreeOpened, GrownPlan)):
        return True
    tree = work.trees.get(event.tree_id)
    return tree is not None and tree.state == SCORING


def load_parts(connection: Connection, work: UnitOfWork, tree_ids: Collection[bytes]) -> None:
    """Load the leaves and scores of trees, without the completions.

    Each score needs all leaves of its tree, and texts are long.
    """
    for tree_id in tree_ids:
        work.parts.setdefault(tree_id, TreeParts())
    for chunk in chunks(sorted(set(tree_ids))):
        for row in connection.execute(_LEAVES, {"keys": chunk}):
            work.part(row.tree_id).leaves[Leaf(row.segment, row.end)] = LeafRow(
                finished=row.finished, listed=row.listed, reason=row.reason
            )
        for row in connection.execute(_SCORES, {"keys": chunk}):
            key = (Leaf(row.segment, row.end), row.scorer)
            work.part(row.tree_id).scores[key] = ScoreRow(
                state=row.state, value=row.value, reason=row.reason, version=row.scorer_version
            )


def load_completions(connection: Connection, work: UnitOfWork, tree_ids: Collection[bytes]) -> None:
    """Load the texts of the loaded leaves of trees."""
    for chunk in chunks(sorted(set(tree_ids))):
        for row in connection.execute(_COMPLETIONS, {"keys": chunk}):
            leaf = work.part(row.tree_id).leaves[Leaf(row.segment, row.end)]
            leaf.completion = row.completion


def load_insides(connection: Connection, work: UnitOfWork, events: Collection[Event] = ()) -> None:
    """Load headers and group scorers of the trees that need them to know which places are owed a
    score.

    These are trees that are grown, or may be after these events, and have places that were put
    before scorers and are no leaves: few trees have any.
    """
    grown = {tree.tree_id for tree in work.trees.values() if tree.state == SCORING}
    trees = grown & set(work.parts)
    trees |= {event.tree_id for event in events if isinstance(event, TreeGrown)}
    marked = _marked(work, events)
    wanted = [
        tree_id
        for tree_id in trees
        if marked.get(tree_id, set()) - set(completion.listed(work.part(tree_id).leaves))
    ]
    for chunk in chunks(sorted(wanted)):
        _load_trees(connection, work, chunk)
        for tree_id, data in connection.execute(_SPECS, {"keys": chunk}):
            spec = tree_pb2.TreeSpec.FromString(data)
            work.part(tree_id).groups = tuple(spec.group_scorers)


def _marked(work: UnitOfWork, events: Collection[Event]) -> dict[bytes, set[Leaf]]:
    """Return the marked places of each tree, as they may be after the events."""
    marked = {tree_id: set(completion.marked(part.leaves)) for tree_id, part in work.parts.items()}
    for event in events:
        if isinstance(event, LeafFinished):
            marked.setdefault(event.tree_id, set()).add(event.leaf)
    for event in events:
        if isinstance(event, TreeGrown):
            places = marked.setdefault(event.tree_id, set())
            places.update(event.inside)
            places.difference_update(event.leaves)
    return marked
