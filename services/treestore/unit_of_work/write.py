"""Writes a Book: one statement per table with all its rows, in an order that never meets a key twice."""

import functools
from collections.abc import Sequence

from sqlalchemy import Connection, Insert, bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from banyan.tree import Leaf
from services.treestore.storage import schema
from services.treestore.storage.sql import insert_all, insert_ignore
from services.treestore.unit_of_work import counts, retention
from services.treestore.unit_of_work.load import chunks
from services.treestore.unit_of_work.rows import CHANGING, FIXED, GroupRow, LeafRow, TallyRow
from services.treestore.unit_of_work.unit_of_work import UnitOfWork, Values, event_digest

TOLD = "told"
_GROUP_CHANGES = ("opened", "done", "dropped", "state", "reason")
_TALLY_CHANGES = tuple(TallyRow.__dataclass_fields__)[2:]


def flush(connection: Connection, book: UnitOfWork) -> None:
    """Writes all that the book made or changed. The book is spent after this."""
    _trees(connection, book)
    _groups(connection, book)
    insert_all(connection, schema.segments, book.new_segments)
    _leaves(connection, book)
    insert_all(connection, schema.scores, book.new_scores)
    _parked(connection, book)
    insert_ignore(connection, schema.plans, book.new_plans)
    for chunk in chunks(tree.tree_id for tree in book.ended):
        connection.execute(_BLOBS_OF, {"keys": chunk})
    for table, kept in ((schema.refused, book.new_refused), (schema.late, book.new_late)):
        insert_ignore(connection, table, retention.fitting(connection, table, kept, book.settings))
    _dead(connection, book)
    _tallies(connection, book)
    _grew(connection, book)
    counts.add(connection, counts.of_book(book))
    book.say_closings()
    tell(connection, book.new_outbox)


def tell(connection: Connection, rows: Sequence[Values]) -> None:
    """Puts events into the outbox, and notes on the connection that it did: see Context.write."""
    insert_all(connection, schema.outbox, rows)
    if rows:
        connection.info[TOLD] = True


_PARKED_ROWS = delete(schema.parked).where(schema.parked.c.n.in_(bindparam("keys", expanding=True)))
_BLOBS_OF = delete(schema.blobs).where(
    schema.blobs.c.tree_id.in_(bindparam("keys", expanding=True))
)
_TREE = update(schema.trees).where(schema.trees.c.tree_id == bindparam("key"))
_GROUP = update(schema.groups).where(
    schema.groups.c.run_id == bindparam("run"), schema.groups.c.group_id == bindparam("group")
)
_LEAF = update(schema.leaves).where(
    schema.leaves.c.tree_id == bindparam("tree"),
    schema.leaves.c.segment == bindparam("at"),
    schema.leaves.c.end == bindparam("stop"),
)
_TALLY = update(schema.tallies).where(
    schema.tallies.c.run_id == bindparam("run"), schema.tallies.c.label == bindparam("of")
)


def _trees(connection: Connection, book: UnitOfWork) -> None:
    made = {values["tree_id"]: values for values in book.new_trees}
    fixed = [
        {**{n: getattr(book.trees[i], n) for n in (*FIXED, *CHANGING)}, **values}
        for i, values in made.items()
    ]  # type: ignore[index]
    insert_all(connection, schema.trees, fixed)
    rows = [
        {"key": tree_id, **{name: getattr(book.trees[tree_id], name) for name in CHANGING}}
        for tree_id in book.changed_trees
        if tree_id not in made
    ]
    if rows:
        connection.execute(_TREE, rows)


def _groups(connection: Connection, book: UnitOfWork) -> None:
    names = tuple(GroupRow.__dataclass_fields__)
    made = [{n: getattr(book.groups[key], n) for n in names} for key in sorted(book.new_groups)]
    insert_all(connection, schema.groups, made)
    rows = [
        {
            "run": key[0],
            "group": key[1],
            **{n: getattr(book.groups[key], n) for n in _GROUP_CHANGES},
        }
        for key in book.changed_groups - book.new_groups
    ]
    if rows:
        connection.execute(_GROUP, rows)


def _leaves(connection: Connection, book: UnitOfWork) -> None:
    insert_all(
        connection, schema.leaves, [_leaf_values(book, *key) for key in sorted(book.new_leaves)]
    )
    silent: list[Values] = []
    spoken: list[Values] = []
    for tree_id, leaf in book.changed_leaves - book.new_leaves:
        row = book.parts[tree_id].leaves[leaf]
        at: Values = {"tree": tree_id, "at": leaf.segment, "stop": leaf.end, **_leaf_changes(row)}
        if row.completion is None:
            silent.append(at)
        else:
            spoken.append({**at, "completion": row.completion})
    for rows in (silent, spoken):
        if rows:
            connection.execute(_LEAF, rows)


def _leaf_values(book: UnitOfWork, tree_id: bytes, leaf: Leaf) -> Values:
    row = book.parts[tree_id].leaves[leaf]
    at = {"tree_id": tree_id, "segment": leaf.segment, "end": leaf.end}
    return {**at, **_leaf_changes(row), "completion": row.completion or ""}


def _leaf_changes(row: LeafRow) -> Values:
    return {"finished": row.finished, "listed": row.listed, "reason": row.reason}


def _parked(connection: Connection, book: UnitOfWork) -> None:
    for chunk in chunks(book.released_rows):
        connection.execute(_PARKED_ROWS, {"keys": chunk})
    new = [w for waiting in book.parked.values() for w in waiting if not w.row]
    rows: list[Values] = [
        {
            "digest": event_digest(w.event),
            "waits_for": w.waits_for,
            "tree_id": w.event.tree_id,
            "kind": w.event.kind,
            "payload": (payload := w.event.payload()),
            "sequence": w.event.sequence,
            "parked_ms": book.now_ms,
            **book.held(w.event, len(payload)),
        }
        for w in new
    ]
    known = (
        retention.known_runs(connection, (str(values["run_id"]) for values in rows))
        if rows
        else set()
    )
    free = [
        values for values in rows if values["run_id"] not in known
    ]  # a store that is built up from the log: see ADR 054
    bound = [values for values in rows if values["run_id"] in known]
    insert_ignore(
        connection,
        schema.parked,
        [*free, *retention.fitting(connection, schema.parked, bound, book.settings)],
    )


def _dead(connection: Connection, book: UnitOfWork) -> None:
    """Keeps letters that there is room for, and says them on the log; the others are not said either."""
    letters = {id(values): letter for letter, values in book.new_dead}
    for values in retention.fitting(
        connection, schema.dead, [values for _, values in book.new_dead], book.settings
    ):
        insert_ignore(connection, schema.dead, [values])
        book.say_dead(letters[id(values)])


def _tallies(connection: Connection, book: UnitOfWork) -> None:
    for key in book.changed_tallies:
        _advance(connection, book.tallies[key])
    names = tuple(TallyRow.__dataclass_fields__)
    insert_all(
        connection,
        schema.tallies,
        [{n: getattr(book.tallies[key], n) for n in names} for key in sorted(book.new_tallies)],
    )
    rows = [
        {"run": key[0], "of": key[1], **{n: getattr(book.tallies[key], n) for n in _TALLY_CHANGES}}
        for key in book.changed_tallies - book.new_tallies
    ]
    if rows:
        connection.execute(_TALLY, rows)


def _grew(connection: Connection, book: UnitOfWork) -> None:
    rows = [
        {"run_id": run_id, "node_id": node_id, "trees": n}
        for (run_id, node_id), n in sorted(book.grew.items())
    ]
    if rows:
        connection.execute(_count(connection.dialect.name), rows)


@functools.cache
def _count(dialect: str) -> Insert:
    table = schema.grown
    statement = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(table)
    more = {"trees": table.c.trees + statement.excluded.trees}
    return statement.on_conflict_do_update(index_elements=["run_id", "node_id"], set_=more)


def _advance(connection: Connection, tally: TallyRow) -> None:
    """Moves the prefix of whole groups on: the ordinals from which a gateway must open."""
    table = schema.groups
    if tally.prefix >= tally.groups:
        return
    mine = (table.c.run_id == tally.run_id) & (table.c.label == tally.label)
    whole = select(table.c.ordinal).where(
        mine, table.c.ordinal >= tally.prefix, table.c.opened == table.c.size
    )
    for ordinal in connection.scalars(whole.order_by(table.c.ordinal)):
        if ordinal != tally.prefix:
            return
        tally.prefix += 1
