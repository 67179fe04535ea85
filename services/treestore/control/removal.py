"""Removing a run that is over: in parts, each a transaction of bounded size, so that a kill at any point leaves what can be
gone on with. The mark comes first: from then on nothing goes on with the run."""

from sqlalchemy import Connection, Table, delete, select, tuple_, update

from banyan.errors import InvalidInput, Refused
from banyan.reasons import Reason
from banyan.v1 import runstore_service_pb2 as rs
from services.treestore.control.runs import run_row
from services.treestore.storage import schema
from services.treestore.unit_of_work import counts
from services.treestore.unit_of_work.load import OVER, chunks

_ROWS = 2000  # of a part: segments and what hangs on them, or rows of one table
_TREES, _METRICS, _ALL = 1, 2, 3  # what is kept, in falling order
_LEVEL = {rs.KEPT_TREES: _TREES, rs.KEPT_METRICS: _METRICS, rs.KEPT_UNSPECIFIED: _ALL}
_OF_TREES = (
    schema.segments,
    schema.leaves,
    schema.scores,
    schema.plans,
    schema.batch_trees,
    schema.batch_replays,
)
_GOING: tuple[Table, ...] = (schema.blobs, schema.rooms)  # by tree: only growing trees need them
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
_FORGOTTEN = delete(schema.tokenizers).where(
    schema.tokenizers.c.digest.not_in(_NAMED)
)  # that no run names any more


def begin(connection: Connection, run_id: str, keep: int) -> str:
    """Mark a run as one that is removed; its whole id. Raises NotFound, or Refused for a run that may go on."""
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
    """Remove a part: whether nothing is left to remove, and the rows of it."""
    run_id, level = begin(connection, run_id, keep), _level(keep)
    rows = _trees(connection, run_id) if level >= _METRICS else _of_trees(connection, run_id)
    for table in (table for at, tables in _BY_RUN.items() if at <= level for table in tables):
        if rows < _ROWS:
            rows += _some(connection, table, run_id, _ROWS - rows)
    if rows >= _ROWS:
        return False, rows
    if level == _ALL:
        connection.execute(delete(schema.runs).where(schema.runs.c.run_id == run_id))
        connection.execute(_FORGOTTEN)
    return True, rows


def _level(keep: int) -> int:
    if keep not in _LEVEL:
        raise InvalidInput(
            f"{keep} is nothing that can be kept of a run; keep metrics, trees, or nothing"
        )
    return _LEVEL[rs.Kept.ValueType(keep)]


def _trees(connection: Connection, run_id: str) -> int:
    """Remove the oldest trees with all that hangs on them, some `_ROWS` segments; a tree goes as a whole."""
    trees, going, rows = schema.trees, list[bytes](), 0
    oldest = (
        select(trees.c.tree_id, trees.c.segments)
        .where(trees.c.run_id == run_id)
        .order_by(trees.c.n)
        .limit(_ROWS)
    )
    for tree_id, segments in connection.execute(oldest):
        going.append(tree_id)
        rows += 1 + segments
        if rows >= _ROWS:
            break
    for chunk in chunks(going):
        for table in (*_OF_TREES, *_GOING, trees):
            connection.execute(delete(table).where(table.c.tree_id.in_(chunk)))
    names = (
        *counts.STATES.values(),
        "segments",
        "leaves",
        "scores",
    )  # those of the others are right with the last part
    of_trees = (schema.counts.c.run_id == run_id) & schema.counts.c.name.in_(names)
    connection.execute(delete(schema.counts).where(of_trees))
    return rows


def _of_trees(connection: Connection, run_id: str) -> int:
    """Remove what only growing trees need."""
    rows, trees = 0, schema.trees
    for table in _GOING:
        mine = (
            select(table.c.tree_id)
            .join(trees, trees.c.tree_id == table.c.tree_id)
            .where(trees.c.run_id == run_id)
        )
        some = list(connection.scalars(mine.distinct().limit(_ROWS)))
        for chunk in chunks(some):
            connection.execute(delete(table).where(table.c.tree_id.in_(chunk)))
        rows += len(some)
    return rows


def _some(connection: Connection, table: Table, run_id: str, most: int) -> int:
    key = tuple_(*table.primary_key.columns)
    mine = select(*table.primary_key.columns).where(table.c.run_id == run_id).limit(most)
    return connection.execute(delete(table).where(key.in_(mine))).rowcount
