"""Counts that transactions keep by run and name (ADR 053), against the rows that they stand for."""

import sqlite3
from collections import Counter
from collections.abc import Iterator

from banyan.v1 import tree_pb2

_NOT_ROWS = ("thrown_away",)
_OF_TREES = ("segments", "leaves", "scores")
_UNREPEATABLE = (
    "DEADLINE",
    "TIMEOUT",
    "INFRASTRUCTURE",
    "ENVIRONMENT_DIVERGED",
    "ENVIRONMENT_FAULT",
    "EFFECT_UNKNOWN",
)


def counts(db: sqlite3.Connection) -> Iterator[str]:
    """Yield counts that differ from the number of their rows, or that are missing.

    A count of 0 may have no row. `thrown_away` is left out: it counts rows that the store had no
    space to keep (ADR 054), so nothing else has their number.
    """
    told = Counter(
        {(row["run_id"], row["name"]): row["count"] for row in db.execute("select * from counts")}
    )
    found = Counter(_found(db))
    for run_id, name in sorted(told.keys() | found.keys()):
        if name not in _NOT_ROWS and told[run_id, name] != found[run_id, name]:
            yield (
                f"run {run_id} counts {told[run_id, name]} {name}, the rows say"
                f" {found[run_id, name]}"
            )


def _found(db: sqlite3.Connection) -> dict[tuple[str, str], int]:
    """Return the counts of the rows.

    The names are repeated here, so that the store's spelling is checked too.
    """
    found = {}
    for run_id, state, times in db.execute(
        "select run_id, state, count(*) from trees group by 1, 2"
    ):
        found[
            run_id, f"trees_{tree_pb2.TreeState.Name(state).removeprefix('TREE_STATE_').lower()}"
        ] = times
    for table in _OF_TREES:
        rows = db.execute(
            f"select t.run_id, count(*) from {table} x join trees t on t.tree_id = x.tree_id"
            " group by 1"
        )
        found |= {(run_id, table): times for run_id, times in rows}
    missing: Counter[tuple[str, str]] = Counter()
    for run_id, reason in db.execute(
        "select t.run_id, x.reason from scores x join trees t on t.tree_id = x.tree_id"
        f" where x.state = {tree_pb2.SCORE_STATE_UNSCORABLE}"
    ):
        missing[run_id, "unrepeatable"] += reason.split(":")[0] in _UNREPEATABLE
    found |= {key: times for key, times in missing.items() if times}
    policies = db.execute("select run_id, count(*) from policies group by 1")
    return found | {(run_id, "policies"): times for run_id, times in policies}
