"""Counts that transactions keep by run and name (ADR 053), against the rows that they stand for."""

import sqlite3
from collections import Counter
from collections.abc import Iterator

from banyan.v1 import tree_pb2

_NOT_ROWS = ("thrown_away",)
_OF_TREES = ("segments", "leaves", "scores")


def counts(db: sqlite3.Connection) -> Iterator[str]:
    """Every count of every run is the number of its rows, and what has rows has a count; a count of 0 may have no row.

    `thrown_away` is left out: it counts rows for which there was no room (ADR 054), so the store holds none of them, and
    nothing else says how many they were.
    """
    told = Counter(
        {(row["run_id"], row["name"]): row["count"] for row in db.execute("select * from counts")}
    )
    found = Counter(_found(db))
    for run_id, name in sorted(told.keys() | found.keys()):
        if name not in _NOT_ROWS and told[run_id, name] != found[run_id, name]:
            yield f"run {run_id} counts {told[run_id, name]} {name}, the rows say {found[run_id, name]}"


def _found(db: sqlite3.Connection) -> dict[tuple[str, str], int]:
    """What the rows add up to; the names are spelt here once more, so that the store's own spelling is checked too."""
    found = {}
    for run_id, state, times in db.execute(
        "select run_id, state, count(*) from trees group by 1, 2"
    ):
        found[
            run_id, f"trees_{tree_pb2.TreeState.Name(state).removeprefix('TREE_STATE_').lower()}"
        ] = times
    for table in _OF_TREES:
        rows = db.execute(
            f"select t.run_id, count(*) from {table} x join trees t on t.tree_id = x.tree_id group by 1"
        )
        found |= {(run_id, table): times for run_id, times in rows}
    policies = db.execute("select run_id, count(*) from policies group by 1")
    return found | {(run_id, "policies"): times for run_id, times in policies}
