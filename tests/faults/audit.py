"""The oracle of every fault test: it reads the store's SQL after a run and lists all faults."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from tests.faults.oracle import answers, counts, lineage, steps, trees, votes
from tests.faults.oracle.allowed import NOTHING, Allowed

_DROPPED_TREE = (
    "reason = 'TREE_DROPPED' and tree_id in (select tree_id from trees where state ="
    f" {lineage.DROPPED})"
)
# Rows about a dropped tree are no fault of their own; the drop itself is checked with the tree.
_KEPT = {
    "refused": f"where not ({_DROPPED_TREE})",
    "late": f"where not ({_DROPPED_TREE})",
    "dead": "",
}
_QUEUES = ("parked", "outbox", "blobs")


def audit(database: Path, run_id: str, made: int, allowed: Allowed = NOTHING) -> list[str]:
    """Return the broken promises in the store of a run that succeeded with `made` steps.

    By default no consequence of a fault is forgiven; a caller who injects faults states in
    `allowed` what they may leave.
    """
    db = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    db.row_factory = sqlite3.Row
    try:
        return list(_wrong(db, run_id, made, allowed))
    except sqlite3.DatabaseError as error:
        return [f"database: {error}"]
    finally:
        db.close()


def _wrong(db: sqlite3.Connection, run_id: str, made: int, allowed: Allowed) -> Iterator[str]:
    (word,) = db.execute("pragma integrity_check").fetchone()
    if word != "ok":
        yield f"database: {word}"
        return
    yield from lineage.segments(db)
    yield from answers.answers(db)
    yield from answers.words(db)
    yield from answers.states(db)
    yield from lineage.samples(db, run_id)
    yield from lineage.leaves(db)
    yield from lineage.scores(db, run_id, allowed)
    yield from trees.trees(db, run_id, allowed)
    yield from trees.groups(db, run_id)
    yield from trees.tallies(db, run_id)
    yield from votes.votes(db, run_id)
    yield from counts.counts(db)
    yield from steps.run(db, run_id, made, allowed)
    yield from steps.batches(db, run_id, made)
    yield from steps.policies(db, run_id, made, allowed)
    yield from _queues(db, allowed)


def _queues(db: sqlite3.Connection, allowed: Allowed) -> Iterator[str]:
    """Yield queues that are not empty, and refused, late or dead rows that are not allowed."""
    for table in _QUEUES:
        (left,) = db.execute(f"select count(*) from {table}").fetchone()
        if left:
            yield f"{left} rows are left in {table}"
    for table, which in _KEPT.items():
        for row in db.execute(f"select reason, count(*) times from {table} {which} group by 1"):
            if not allowed.reason(table, row["reason"]):
                yield f"{row['times']} rows in {table}: {row['reason'] or 'without a reason'}"
