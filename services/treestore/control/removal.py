"""Removal of a run that is over, in parts: each is a transaction of bounded size, so that a kill at
any point leaves a state from which the removal can continue. The run is marked first, and cannot be
resumed from then on.
"""

import itertools

from sqlalchemy import Connection, Table, delete, select, tuple_, update

from banyan.errors import InvalidInput, Refused
from banyan.reasons import Reason
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.control.runs import run_row
from services.treestore.storage import schema
from services.treestore.storage.sql import chunks
from services.treestore.unit_of_work import counts
from services.treestore.unit_of_work.rows import OVER

_ROWS = 2000  # of a part: segments with their leaves and scores, or rows of one table
_TREES, _METRICS, _ALL = 1, 2, 3  # levels: kept are trees, metrics, nothing
_LEVEL = {rs.KEPT_TREES: _TREES, rs.KEPT_METRICS: _METRICS, rs.KEPT_UNSPECIFIED: _ALL}
_OF_TREES = (
    schema.segments,
    schema.leaves,
    schema.scores,
    schema.rescores,
    schema.plans,
    schema.effects,
    schema.batch_trees,
    schema.batch_replays,
)
_OF_GROWTH: tuple[Table, ...] = (schema.blobs, schema.rooms)  # only growing trees need them
_BY_RUN = {
    _TREES: (
        schema.parked,
        schema.refused,
        schema.late,
        schema.dead,
        schema.tokens,
        schema.desired,
        schema.processes,
    ),
    _METRICS: (schema.groups,),
    _ALL: (
        schema.batches,
        schema.policies,
        schema.allocations,
        schema.members,
        schema.grown,
        schema.tallies,
        schema.counts,
    ),
}
_NAMED = select(schema.runs.c.tokenizer).where(schema.runs.c.tokenizer.is_not(None))
_DELETE_UNUSED_TOKENIZERS = delete(schema.tokenizers).where(
    schema.tokenizers.c.digest.not_in(_NAMED)
)


def begin(connection: Connection, run_id: str, keep: int) -> str:
    """Mark a run as removed, and return its whole id. Raises NotFound, or Refused for a run that is
    not over.
    """
    run, level = run_row(connection, run_id), _level(keep)
    if run.state not in OVER:
        name = rs.RunState.Name(rs.RunState.ValueType(run.state)).removeprefix("RUN_STATE_")
        how = f"cancel it first: banyan runs cancel {run.run_id}"
        raise Refused(f"run {run.run_id} is {name} and may go on; {how}", Reason.RUN_LIVE)
    if level > run.removed:
        connection.execute(
            update(schema.runs).where(schema.runs.c.run_id == run.run_id).values(removed=level)
        )
    return str(run.run_id)


def step(connection: Connection, run_id: str, keep: int) -> tuple[bool, int]:
    """Remove a part; return True if nothing is left to remove, and the number of removed rows."""
    run_id, level = begin(connection, run_id, keep), _level(keep)
    remove = _remove_trees if level >= _METRICS else _remove_growth
    rows = remove(connection, run_id)
    of_level = [tables for at, tables in _BY_RUN.items() if at <= level]
    for table in itertools.chain.from_iterable(of_level):
        if rows < _ROWS:
            rows += _remove_rows(connection, table, run_id, _ROWS - rows)
    if rows >= _ROWS:
        return False, rows
    if level == _ALL:
        connection.execute(delete(schema.runs).where(schema.runs.c.run_id == run_id))
        connection.execute(_DELETE_UNUSED_TOKENIZERS)
    return True, rows


def _level(keep: int) -> int:
    if keep not in _LEVEL:
        raise InvalidInput(
            f"{keep} is nothing that can be kept of a run; keep metrics, trees, or nothing"
        )
    return _LEVEL[rs.Kept.ValueType(keep)]


def _remove_trees(connection: Connection, run_id: str) -> int:
    """Remove the oldest trees with all their rows, about `_ROWS` segments, and return the number of
    rows; a tree goes as a whole.
    """
    trees, removed, rows = schema.trees, list[bytes](), 0
    oldest = (
        select(trees.c.tree_id, trees.c.segments)
        .where(trees.c.run_id == run_id)
        .order_by(trees.c.n)
        .limit(_ROWS)
    )
    for tree_id, segments in connection.execute(oldest):
        removed.append(tree_id)
        rows += 1 + segments
        if rows >= _ROWS:
            break
    for chunk in chunks(removed):
        for table in (*_OF_TREES, *_OF_GROWTH, trees):
            connection.execute(delete(table).where(table.c.tree_id.in_(chunk)))
    # The counts of the remaining trees are wrong until the last part.
    names = (*counts.STATES.values(), "segments", "leaves", "scores")
    of_trees = (schema.counts.c.run_id == run_id) & schema.counts.c.name.in_(names)
    connection.execute(delete(schema.counts).where(of_trees))
    return rows


def _remove_growth(connection: Connection, run_id: str) -> int:
    """Remove the rows that only growing trees need, and return their number."""
    rows, trees = 0, schema.trees
    for table in _OF_GROWTH:
        of_run = (
            select(table.c.tree_id)
            .join(trees, trees.c.tree_id == table.c.tree_id)
            .where(trees.c.run_id == run_id)
        )
        tree_ids = list(connection.scalars(of_run.distinct().limit(_ROWS)))
        for chunk in chunks(tree_ids):
            connection.execute(delete(table).where(table.c.tree_id.in_(chunk)))
        rows += len(tree_ids)
    return rows


def _remove_rows(connection: Connection, table: Table, run_id: str, limit: int) -> int:
    key = tuple_(*table.primary_key.columns)
    oldest = select(*table.primary_key.columns).where(table.c.run_id == run_id).limit(limit)
    return connection.execute(delete(table).where(key.in_(oldest))).rowcount
