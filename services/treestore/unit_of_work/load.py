"""Fills a Book: bulk reads by key, a statement per table and not per event."""

import functools
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import BindParameter, Connection, Row, Select, Table, bindparam, select, tuple_
from sqlalchemy.sql.elements import KeyedColumnElement

from banyan.reasons import Reason
from banyan.tree import Leaf
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from services.treestore.events.decode import restore
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
from services.treestore.storage.store_metadata import read_int
from services.treestore.unit_of_work import completion as closing
from services.treestore.unit_of_work import segment_limits
from services.treestore.unit_of_work.rows import (
    CHANGING,
    FIXED,
    SCORING,
    GroupRow,
    LeafRow,
    RunRow,
    ScoreRow,
    SegmentHeader,
    TallyRow,
    TreeRow,
)
from services.treestore.unit_of_work.segment_bounds import BROKEN
from services.treestore.unit_of_work.unit_of_work import UnitOfWork, Waiting, scorers_of

T = TypeVar("T")
OVER = (rs.RUN_STATE_SUCCEEDED, rs.RUN_STATE_FAILED, rs.RUN_STATE_CANCELLED)
LOST = (Reason.ORDINAL_TAKEN, Reason.PARENT_REFUSED, *BROKEN)


def _of_trees(table: Table, *names: str) -> Select[Any]:
    """Columns of the rows of trees, in order of arrival."""
    return (
        select(*(table.c[name] for name in names))
        .where(table.c.tree_id.in_(_KEYS))
        .order_by(table.c.n)
    )


# Made once: building a statement of many columns costs more than running it.
_KEYS: BindParameter[Any] = bindparam("keys", expanding=True)
_TREES = select(*(schema.trees.c[name] for name in (*FIXED, *CHANGING))).where(
    schema.trees.c.tree_id.in_(_KEYS)
)
_HEADS = select(*(schema.segments.c[name] for name in SegmentHeader.__dataclass_fields__))
_HEADS_BY_ID = _HEADS.where(schema.segments.c.id.in_(_KEYS))
_HEADS_BY_PLACE = _HEADS.where(
    tuple_(schema.segments.c.tree_id, schema.segments.c.parent).in_(_KEYS)
)
_HEADS_BY_TREE = _HEADS.where(schema.segments.c.tree_id.in_(_KEYS))
_AT = ("tree_id", "segment", "end")
_LEAVES = _of_trees(schema.leaves, *_AT, "finished", "listed", "reason")
_COMPLETIONS = _of_trees(schema.leaves, *_AT, "completion")
_SCORES = _of_trees(schema.scores, *_AT, "scorer", "state", "value", "reason", "scorer_version")
_SPECS = select(schema.trees.c.tree_id, schema.trees.c.spec).where(
    schema.trees.c.tree_id.in_(_KEYS)
)
_LOST_SEGMENTS = select(schema.refused.c.segment).where(
    schema.refused.c.segment.in_(_KEYS),
    schema.refused.c.kind == "segment",
    schema.refused.c.reason.in_(LOST),
)
_CHUNK = 2000  # keys in one statement, below the databases' limits for parameters


def chunks(items: Iterable[T], size: int = _CHUNK) -> Iterator[list[T]]:
    """The items in lists of at most `size`."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


@functools.cache
def _rows_in(table: Table, key: str, names: tuple[str, ...]) -> Select[Any]:
    """Made once: building a statement costs as much as running it."""
    equal = [table.c[name] == bindparam(name) for name in names]
    return (
        select(table)
        .where(table.c[key].in_(bindparam("keys", expanding=True)), *equal)
        .order_by(*_order(table))
    )


def _order(table: Table) -> list[KeyedColumnElement[Any]]:
    return [table.c.n] if "n" in table.c else []


def rows_in(
    connection: Connection, table: Table, key: str, values: Iterable[Any], **equal: Any
) -> Iterator[Row[Any]]:
    """Rows of a table whose column `key` is one of the values and whose other columns are as said; in order of arrival."""
    statement = _rows_in(table, key, tuple(equal))
    for chunk in chunks(sorted(set(values))):
        yield from connection.execute(statement, {"keys": chunk, **equal})


def load_for(
    connection: Connection,
    book: UnitOfWork,
    events: Collection[Event],
    keys: Collection[bytes] = (),
) -> None:
    """All that the rules may ask about these events, about the parked ones that wait for `keys`, and about those that
    either may release."""
    book.gateway_epoch = read_int(connection, "gateway_epoch")
    load_parked(connection, book, "waits_for", keys)
    load_parked(connection, book, "tree_id", {e.tree_id for e in [*events, *book.waiting()]})
    everything = [*events, *book.waiting()]
    opened = [e for e in everything if isinstance(e, TreeOpened)]
    load_trees(connection, book, {e.tree_id for e in everything})
    load_runs(connection, book, {e.run_id for e in opened})
    _load_siblings(connection, book, opened)
    load_groups(connection, book, _groups_of(book))
    load_spares(connection, book)
    load_tallies(connection, book, {e.run_id for e in everything})
    load_segments(connection, book, everything)
    load_parts(connection, book, {e.tree_id for e in everything if _looks_at_scores(book, e)})
    load_insides(connection, book, everything)
    segment_limits.load(connection, book, everything)


def _load_siblings(
    connection: Connection, book: UnitOfWork, opened: Collection[TreeOpened]
) -> None:
    """Groups and trees that are where the opened ones want to be."""
    for run_id in {e.run_id for e in opened}:
        specs = [e.message.spec for e in opened if e.run_id == run_id]
        groups, trees = schema.groups, schema.trees
        for row in rows_in(
            connection, groups, "ordinal", {s.group_ordinal for s in specs}, run_id=run_id
        ):
            _add_group(book, row)
        load_groups(connection, book, {(run_id, s.group_id) for s in specs})
        for chunk in chunks(sorted({s.group_id for s in specs})):
            there = select(trees.c.tree_id).where(
                trees.c.run_id == run_id, trees.c.group_id.in_(chunk)
            )
            load_trees(connection, book, set(connection.scalars(there)) - set(book.trees))


def _add_group(book: UnitOfWork, row: Row[Any]) -> None:
    names = GroupRow.__dataclass_fields__
    book.add_group(GroupRow(**{name: getattr(row, name) for name in names}))


def _groups_of(book: UnitOfWork) -> set[tuple[str, str]]:
    return {(t.run_id, t.group_id) for t in book.trees.values()}


def load_spares(connection: Connection, book: UnitOfWork) -> None:
    """All trees of the groups that do not need all of them: one that closes may make others needless."""
    for run_id in {group.run_id for group in book.groups.values() if group.take}:
        groups = {g.group_id for g in book.groups.values() if g.take and g.run_id == run_id}
        trees = schema.trees
        for chunk in chunks(sorted(groups)):
            there = select(trees.c.tree_id).where(
                trees.c.run_id == run_id, trees.c.group_id.in_(chunk)
            )
            load_trees(connection, book, set(connection.scalars(there)) - set(book.trees))


def load_parked(
    connection: Connection, book: UnitOfWork, column: str, values: Collection[bytes]
) -> None:
    """Parked events whose `column` is one of the values."""
    for row in rows_in(connection, schema.parked, column, values):
        event = restore(row.kind, row.payload, row.sequence, row.run_id)
        book.wait(Waiting(event, row.waits_for, row.n))


def load_runs(connection: Connection, book: UnitOfWork, run_ids: Iterable[str]) -> None:
    """Runs, with their held-out rows."""
    for row in rows_in(connection, schema.runs, "run_id", run_ids):
        held = row.held_out
        book.runs[row.run_id] = RunRow(
            row.run_id,
            row.state in OVER,
            frozenset(held[i : i + 32] for i in range(0, len(held), 32)),
            row.step,
        )


def load_trees(connection: Connection, book: UnitOfWork, tree_ids: Iterable[bytes]) -> None:
    """Trees without their specs."""
    for chunk in chunks(sorted(set(tree_ids))):
        for row in connection.execute(_TREES, {"keys": chunk}):
            values = row._asdict()
            values["scorers"] = scorers_of(row.scorers)
            book.add_tree(TreeRow(**values))
            book.states[row.tree_id] = row.state


def load_groups(connection: Connection, book: UnitOfWork, keys: Iterable[tuple[str, str]]) -> None:
    """Groups by (run, group)."""
    by_run: dict[str, set[str]] = {}
    for run_id, group_id in keys:
        by_run.setdefault(run_id, set()).add(group_id)
    for run_id, group_ids in by_run.items():
        for row in rows_in(connection, schema.groups, "group_id", group_ids, run_id=run_id):
            _add_group(book, row)


def load_tallies(connection: Connection, book: UnitOfWork, run_ids: Iterable[str]) -> None:
    """The sums of these runs."""
    for row in rows_in(connection, schema.tallies, "run_id", run_ids):
        book.tallies[(row.run_id, row.label)] = TallyRow(**row._asdict())


def load_segments(connection: Connection, book: UnitOfWork, events: Iterable[Event]) -> None:
    """Heads of the segments that the events name, and whoever is at the places that they want."""
    named, places = set[bytes](), set[tuple[bytes, bytes]]()
    for event in events:
        match event:
            case GrownSegment():
                named |= {event.segment.id, event.segment.parent} - {b""}
                places.add((event.tree_id, event.segment.parent))
            case TreeGrown():
                named |= {leaf.segment for leaf in (*event.leaves, *event.inside)}
            case LeafFinished() | LeafScored():
                named.add(event.leaf.segment)
    _load_heads(connection, book, named, places)
    for chunk in chunks(sorted(named)):
        book.lost |= set(connection.scalars(_LOST_SEGMENTS, {"keys": chunk}))


def _load_heads(
    connection: Connection, book: UnitOfWork, named: set[bytes], places: set[tuple[bytes, bytes]]
) -> None:
    for chunk in chunks(sorted(named)):
        for row in connection.execute(_HEADS_BY_ID, {"keys": chunk}):
            book.add_head(SegmentHeader(*row))
    for pairs in chunks(sorted(places)):
        for row in connection.execute(_HEADS_BY_PLACE, {"keys": pairs}):
            book.add_head(SegmentHeader(*row))


def load_parts(connection: Connection, book: UnitOfWork, tree_ids: Collection[bytes]) -> None:
    """Leaves and scores of these trees, without what leaves say: texts are long, and each score asks for all leaves."""
    for chunk in chunks(sorted(set(tree_ids))):
        for tree_id, segment, end, *leaf in connection.execute(_LEAVES, {"keys": chunk}):
            book.part(tree_id).leaves[Leaf(segment, end)] = LeafRow(*leaf)
        for tree_id, segment, end, scorer, *score in connection.execute(_SCORES, {"keys": chunk}):
            book.part(tree_id).scores[(Leaf(segment, end), scorer)] = ScoreRow(*score)


def load_completions(connection: Connection, book: UnitOfWork, tree_ids: Collection[bytes]) -> None:
    """What the loaded leaves of these trees say."""
    for chunk in chunks(sorted(set(tree_ids))):
        for tree_id, segment, end, completion in connection.execute(_COMPLETIONS, {"keys": chunk}):
            book.part(tree_id).leaves[Leaf(segment, end)].completion = completion


def load_members(
    connection: Connection, book: UnitOfWork, run_id: str, group_ids: Collection[str]
) -> None:
    """Load groups with all their trees and sums: the needs of giving groups up. A group may have no tree yet."""
    load_groups(connection, book, {(run_id, group_id) for group_id in group_ids})
    load_tallies(connection, book, [run_id])
    trees = schema.trees
    for chunk in chunks(sorted(group_ids)):
        of_groups = select(trees.c.tree_id).where(
            trees.c.run_id == run_id, trees.c.group_id.in_(chunk)
        )
        load_trees(connection, book, connection.scalars(of_groups))


def _looks_at_scores(book: UnitOfWork, event: Event) -> bool:
    """Whether an event asks for a tree's leaves and scores: by itself, or as it touches a tree that may be closed."""
    tree = book.trees.get(event.tree_id)
    return not isinstance(event, (GrownSegment, TreeOpened, GrownPlan)) or (
        tree is not None and tree.state == SCORING
    )


def load_insides(connection: Connection, book: UnitOfWork, events: Collection[Event] = ()) -> None:
    """Segments and group scorers of trees that are grown, or now may be, with places put before scorers that are no leaves:
    few trees have any."""
    trees = {tree.tree_id for tree in book.trees.values() if tree.state == SCORING}
    marked = {tree_id: set(closing.marked(part.leaves)) for tree_id, part in book.parts.items()}
    for event in events:
        if isinstance(event, LeafFinished):
            marked.setdefault(event.tree_id, set()).add(event.leaf)
        elif isinstance(event, TreeGrown):
            trees.add(event.tree_id)
    for event in events:
        if isinstance(event, TreeGrown):
            marked.setdefault(event.tree_id, set()).update(event.inside)
            marked[event.tree_id].difference_update(event.leaves)
    wanted = [i for i in trees if marked.get(i, set()) - set(closing.listed(book.part(i).leaves))]
    for chunk in chunks(sorted(wanted)):
        for row in connection.execute(_HEADS_BY_TREE, {"keys": chunk}):
            book.add_head(SegmentHeader(*row))
        for tree_id, spec in connection.execute(_SPECS, {"keys": chunk}):
            book.part(tree_id).groups = tuple(tree_pb2.TreeSpec.FromString(spec).group_scorers)


def load_whole(connection: Connection, book: UnitOfWork, tree_ids: Collection[bytes]) -> None:
    """Trees with their groups, sums, leaves and scores: what closing, dropping and consuming need."""
    load_trees(connection, book, tree_ids)
    load_groups(connection, book, _groups_of(book))
    load_spares(connection, book)
    load_tallies(connection, book, {t.run_id for t in book.trees.values()})
    load_parts(connection, book, tree_ids)
    load_insides(connection, book)
