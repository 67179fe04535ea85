"""Counts of a run or of the whole store, by name; sums that every transaction keeps, so they cost the same at any size."""

from sqlalchemy import Connection, func, select

from services.treestore.storage import schema
from services.treestore.unit_of_work import counts, retention

_KEPT = (*counts.STATES.values(), "segments", "leaves", "scores", "policies", retention.THROWN_AWAY)
_HELD = {
    "refused": schema.refused,
    "late": schema.late,
    "parked": schema.parked,
}  # bounded, by run (ADR 054)
_SUMS = (
    "sampled_tokens",
    "path_tokens",
    "prompt_tokens",
    "prompt_path_tokens",
    "scored",
    "unscorable",
)


def read(connection: Connection, run_id: str) -> dict[str, int]:
    """Counts; dead letters are counted for the store only, as not all of them belong to a run."""
    kept = counts.read(connection, run_id)
    found = {name: kept.get(name, 0) for name in _KEPT}
    found["trees"] = sum(found[name] for name in counts.STATES.values())
    for name, table in _HELD.items():
        where = [table.c.run_id == run_id] if run_id else []
        found[name] = connection.scalar(select(func.count()).select_from(table).where(*where)) or 0
    return (
        found
        | {"batches": _batches(connection, run_id)}
        | _tallied(connection, run_id)
        | _of_store(connection, run_id)
    )


def _batches(connection: Connection, run_id: str) -> int:
    table = schema.runs
    where = [table.c.run_id == run_id] if run_id else []
    return int(
        connection.scalar(select(func.coalesce(func.sum(table.c.batches), 0)).where(*where)) or 0
    )


def _tallied(connection: Connection, run_id: str) -> dict[str, int]:
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
