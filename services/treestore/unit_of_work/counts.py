"""Counts by run and name, kept by every transaction so that no query has to count rows."""

from collections import Counter
from collections.abc import Mapping

from sqlalchemy import Connection, func, select

from banyan.reasons import Reason
from services.treestore.storage import schema
from services.treestore.storage.sql import add_counts
from services.treestore.unit_of_work.rows import (
    CLOSED,
    CONSUMED,
    DROPPED,
    GROWING,
    SCORING,
    UNSCORABLE,
)
from services.treestore.unit_of_work.unit_of_work import UnitOfWork

STATES = {
    GROWING: "trees_growing",
    SCORING: "trees_scoring",
    CLOSED: "trees_closed",
    CONSUMED: "trees_consumed",
    DROPPED: "trees_dropped",
}
UNREPEATABLE = "unrepeatable"  # the count of scores that are missing for one of these reasons
_OF_A_TIME = frozenset(
    {
        Reason.DEADLINE,
        "TIMEOUT",
        Reason.INFRASTRUCTURE,
        Reason.ENVIRONMENT_DIVERGED,
        Reason.ENVIRONMENT_FAULT,
        Reason.EFFECT_UNKNOWN,
    }
)
Changes = Mapping[tuple[str, str], int]  # by run and name


def of_work(work: UnitOfWork) -> Changes:
    """Return the changes that a transaction makes to the counts."""
    changes: Counter[tuple[str, str]] = Counter()
    for tree_id in work.changed_trees:
        tree, before = work.trees[tree_id], work.stored_states.get(tree_id)
        changes[tree.run_id, STATES[tree.state]] += 1
        if before is not None:
            changes[tree.run_id, STATES[before]] -= 1
    new_rows = {"segments": work.new_segments, "scores": work.new_scores}
    for name, rows in new_rows.items():
        for values in rows:
            changes[work.trees[values["tree_id"]].run_id, name] += 1  # type: ignore[index]
    for values in work.new_scores:
        if _is_unrepeatable(values):
            changes[work.trees[values["tree_id"]].run_id, UNREPEATABLE] += 1  # type: ignore[index]
    for tree_id, _ in work.new_leaves:
        changes[work.trees[tree_id].run_id, "leaves"] += 1
    return changes


def _is_unrepeatable(score: Mapping[str, object]) -> bool:
    """Tell whether a score is missing for a reason that another run of the seed may not meet."""
    reason = str(score["reason"]).partition(":")[0]
    return score["state"] == UNSCORABLE and reason in _OF_A_TIME


def add(connection: Connection, changes: Changes) -> None:
    """Add the changes to the counts."""
    rows = [
        {"run_id": run, "name": name, "count": change}
        for (run, name), change in sorted(changes.items())
        if change
    ]
    add_counts(connection, schema.counts, rows, "count")


def read(connection: Connection, run_id: str) -> dict[str, int]:
    """Return the counts of a run, or of all runs together."""
    table = schema.counts
    where = [table.c.run_id == run_id] if run_id else []
    rows = connection.execute(
        select(table.c.name, func.sum(table.c["count"])).where(*where).group_by(table.c.name)
    )
    return {name: int(count) for name, count in rows}  # PostgreSQL sums integers to decimals
