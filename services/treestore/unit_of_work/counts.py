"""Counts by run and name that every transaction keeps, so that nobody has to count rows."""

import functools
from collections import Counter
from collections.abc import Mapping

from sqlalchemy import Connection, Insert, func, select
from sqlalchemy.dialects import postgresql, sqlite

from services.treestore.storage import schema
from services.treestore.unit_of_work.rows import CLOSED, CONSUMED, DROPPED, GROWING, SCORING
from services.treestore.unit_of_work.unit_of_work import UnitOfWork

STATES = {
    GROWING: "trees_growing",
    SCORING: "trees_scoring",
    CLOSED: "trees_closed",
    CONSUMED: "trees_consumed",
    DROPPED: "trees_dropped",
}
Changes = Mapping[tuple[str, str], int]  # by run and name


def of_book(book: UnitOfWork) -> Changes:
    """What a transaction adds and takes away."""
    changes: Counter[tuple[str, str]] = Counter()
    for tree_id in book.changed_trees:
        tree, before = book.trees[tree_id], book.states.get(tree_id)
        changes[tree.run_id, STATES[tree.state]] += 1
        if before is not None:
            changes[tree.run_id, STATES[before]] -= 1
    named = {"segments": book.new_segments, "scores": book.new_scores}
    for name, rows in named.items():
        for values in rows:
            changes[book.trees[values["tree_id"]].run_id, name] += 1  # type: ignore[index]
    for tree_id, _ in book.new_leaves:
        changes[book.trees[tree_id].run_id, "leaves"] += 1
    return changes


def add(connection: Connection, changes: Changes) -> None:
    """Moves the counts."""
    rows = [
        {"run_id": run, "name": name, "count": by}
        for (run, name), by in sorted(changes.items())
        if by
    ]
    if rows:
        connection.execute(_add(connection.dialect.name), rows)


@functools.cache
def _add(dialect: str) -> Insert:
    table = schema.counts
    statement = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(table)
    more = {"count": table.c["count"] + statement.excluded["count"]}
    return statement.on_conflict_do_update(index_elements=["run_id", "name"], set_=more)


def read(connection: Connection, run_id: str) -> dict[str, int]:
    """The counts of a run, or of all runs."""
    table = schema.counts
    where = [table.c.run_id == run_id] if run_id else []
    rows = connection.execute(
        select(table.c.name, func.sum(table.c["count"])).where(*where).group_by(table.c.name)
    )
    return {name: int(count) for name, count in rows}  # PostgreSQL sums whole numbers to decimals
