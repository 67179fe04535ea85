"""Counts of a run or of the whole store, by name."""

from sqlalchemy import Connection, Table, func, select

from services.treestore import schema
from services.treestore.rows import CLOSED, CONSUMED, DROPPED, GROWING, SCORING

_STATES = {"growing": GROWING, "scoring": SCORING, "closed": CLOSED, "consumed": CONSUMED, "dropped": DROPPED}
_OF_TREE = {"leaves": schema.leaves, "scores": schema.scores, "refused": schema.refused, "late": schema.late}
_SUMS = ("sampled_tokens", "path_tokens", "prompt_tokens", "prompt_path_tokens", "scored", "unscorable")


def read(connection: Connection, run_id: str) -> dict[str, int]:
    """Counts; dead letters belong to no run and are counted for the store only."""
    trees = schema.trees
    mine = [trees.c.run_id == run_id] if run_id else []
    by_state: dict[int, int] = dict(
        connection.execute(select(trees.c.state, func.count()).where(*mine).group_by(trees.c.state)).all()
    )
    counts = {f"trees_{name}": by_state.get(state, 0) for name, state in _STATES.items()}
    counts["trees"] = sum(by_state.values())
    # PostgreSQL sums whole numbers to decimals.
    counts["segments"] = int(connection.scalar(select(func.coalesce(func.sum(trees.c.segments), 0)).where(*mine)) or 0)
    for name, table in _OF_TREE.items():
        counts[name] = _of_tree(connection, table, run_id)
    for name, table in {"batches": schema.batches, "policies": schema.policies, "parked": schema.parked}.items():
        where = [table.c.run_id == run_id] if run_id else []
        counts[name] = connection.scalar(select(func.count()).select_from(table).where(*where)) or 0
    return counts | _tallied(connection, run_id) | _of_store(connection, run_id)


def _of_tree(connection: Connection, table: Table, run_id: str) -> int:
    query = select(func.count()).select_from(table)
    if run_id:
        mine = select(schema.trees.c.tree_id).where(schema.trees.c.run_id == run_id)
        query = query.where(table.c.tree_id.in_(mine))
    return connection.scalar(query) or 0


def _tallied(connection: Connection, run_id: str) -> dict[str, int]:
    table = schema.tallies
    where = [table.c.run_id == run_id] if run_id else []
    row = connection.execute(select(*(func.coalesce(func.sum(table.c[name]), 0) for name in _SUMS)).where(*where)).one()
    return {name: int(value) for name, value in zip(_SUMS, row, strict=True)}


def _of_store(connection: Connection, run_id: str) -> dict[str, int]:
    if run_id:
        return {}
    tables = {"runs": schema.runs, "dead": schema.dead, "outbox": schema.outbox}
    return {name: connection.scalar(select(func.count()).select_from(table)) or 0 for name, table in tables.items()}
