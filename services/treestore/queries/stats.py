"""Counts of a run or of the whole store, by name: sums that every transaction keeps, so they cost
the same at any size.
"""

from sqlalchemy import Connection, func, select

from services.treestore.storage import schema
from services.treestore.unit_of_work import counts, retention

_COUNTED = (
    *counts.STATES.values(),
    "segments",
    "leaves",
    "scores",
    "policies",
    retention.THROWN_AWAY,
    counts.UNREPEATABLE,
)
_BOUNDED = {  # tables that are bounded by run, so that counting their rows is cheap (ADR 054)
    "refused": schema.refused,
    "late": schema.late,
    "parked": schema.parked,
}
_SUMS = (
    "sampled_tokens",
    "path_tokens",
    "prompt_tokens",
    "prompt_path_tokens",
    "scored",
    "unscorable",
)


def read(connection: Connection, run_id: str) -> dict[str, int]:
    """Return the counts of a run, or of the store if `run_id` is empty.

    Dead letters are counted for the store only, as not all of them belong to a run.
    """
    counted = counts.read(connection, run_id)
    stats = {name: counted.get(name, 0) for name in _COUNTED}
    stats["trees"] = sum(stats[name] for name in counts.STATES.values())
    for name, table in _BOUNDED.items():
        where = [table.c.run_id == run_id] if run_id else []
        stats[name] = connection.scalar(select(func.count()).select_from(table).where(*where)) or 0
    stats["batches"] = _batches(connection, run_id)
    return stats | _sums(connection, run_id) | _of_store(connection, run_id)


def _batches(connection: Connection, run_id: str) -> int:
    table = schema.runs
    where = [table.c.run_id == run_id] if run_id else []
    total = select(func.coalesce(func.sum(table.c.batches), 0)).where(*where)
    return int(connection.scalar(total) or 0)


def _sums(connection: Connection, run_id: str) -> dict[str, int]:
    table = schema.tallies
    where = [table.c.run_id == run_id] if run_id else []
    row = connection.execute(
        select(*(func.coalesce(func.sum(table.c[name]), 0) for name in _SUMS)).where(*where)
    ).one()
    return {name: int(value) for name, value in zip(_SUMS, row, strict=True)}


def _of_store(connection: Connection, run_id: str) -> dict[str, int]:
    if run_id:
        return {}
    tables = {"runs": schema.runs, "dead": schema.dead, "outbox": schema.outbox}
    return {
        name: connection.scalar(select(func.count()).select_from(table)) or 0
        for name, table in tables.items()
    }
