"""Indices for queries that scanned; counts that transactions keep; the owners of rows of rejected
events.
"""

import sqlalchemy as sa
from alembic import op

from banyan.v1 import events_pb2

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_STATES = {
    "trees_growing": 1,
    "trees_scoring": 2,
    "trees_closed": 3,
    "trees_consumed": 4,
    "trees_dropped": 5,
}
_BOUNDED = {"parked": "payload", "refused": "payload", "late": "payload", "dead": "letter"}
_PAGE = 100  # dead letters read at once: each may have a megabyte


def upgrade() -> None:
    """Apply the migration."""
    op.create_index("ix_trees_run", "trees", ["run_id", "n"])
    op.create_index("ix_batch_trees_tree", "batch_trees", ["tree_id"])
    op.create_index("ix_parked_parked_ms", "parked", ["parked_ms"])
    op.create_index("ix_policies_batch", "policies", ["run_id", "batch_ordinal", "abandoned"])
    op.create_index("ix_policies_step", "policies", ["run_id", "abandoned", "step"])
    op.add_column("runs", sa.Column("removed", sa.BigInteger(), server_default="0", nullable=False))
    _count()
    _attribute()


def _count() -> None:
    op.create_table(
        "counts",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("count", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("run_id", "name", name=op.f("pk_counts")),
    )
    into = "INSERT INTO counts (run_id, name, count) "
    for name, state in _STATES.items():
        op.execute(
            f"{into}SELECT run_id, '{name}', COUNT(*) FROM trees WHERE state = {state}"
            " GROUP BY run_id"
        )
    for name in ("segments", "leaves", "scores"):
        of_trees = f"FROM {name} JOIN trees ON trees.tree_id = {name}.tree_id GROUP BY trees.run_id"
        op.execute(f"{into}SELECT trees.run_id, '{name}', COUNT(*) {of_trees}")
    op.execute(f"{into}SELECT run_id, 'policies', COUNT(*) FROM policies GROUP BY run_id")


def _attribute() -> None:
    for table, column in _BOUNDED.items():
        if table != "parked":
            op.add_column(table, sa.Column("run_id", sa.Text(), server_default="", nullable=False))
        op.add_column(table, sa.Column("node", sa.Text(), server_default="", nullable=False))
        op.add_column(
            table, sa.Column("bytes", sa.BigInteger(), server_default="0", nullable=False)
        )
        op.execute(f"UPDATE {table} SET bytes = LENGTH({column})")
        op.create_index(f"ix_{table}_held", table, ["run_id", "node", "bytes"])
    for table in ("refused", "late", "parked"):
        of_tree = f"(SELECT {{}} FROM trees WHERE trees.tree_id = {table}.tree_id)"
        op.execute(f"UPDATE {table} SET node = COALESCE({of_tree.format('claim_node')}, '')")
        if table != "parked":
            op.execute(f"UPDATE {table} SET run_id = COALESCE({of_tree.format('run_id')}, '')")
    _attribute_letters()


def _attribute_letters() -> None:
    connection, last = op.get_bind(), 0
    page = sa.text(f"SELECT n, letter FROM dead WHERE n > :last ORDER BY n LIMIT {_PAGE}")
    while rows := connection.execute(page, {"last": last}).all():
        for n, letter in rows:
            words = events_pb2.DeadLetter.FromString(bytes(letter)).subject.split(".")
            run_id = (
                words[1] if words[0] in ("lineage", "growth", "train") and len(words) > 1 else ""
            )
            connection.execute(
                sa.text("UPDATE dead SET run_id = :run WHERE n = :n"), {"run": run_id, "n": n}
            )
        last = rows[-1].n
