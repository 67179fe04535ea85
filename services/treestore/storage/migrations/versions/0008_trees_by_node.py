"""Number of trees that each node grew; policies of a run in order."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.create_table(
        "grown",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("trees", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("run_id", "node_id", name=op.f("pk_grown")),
    )
    op.create_index("ix_policies_run", "policies", ["run_id", "n"])
    op.execute(
        "INSERT INTO grown (run_id, node_id, trees) "
        "SELECT run_id, grown_node, COUNT(*) FROM trees WHERE grown_node <> ''"
        " GROUP BY run_id, grown_node"
    )
