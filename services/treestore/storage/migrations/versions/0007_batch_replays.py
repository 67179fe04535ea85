"""The trees that batches trained on again, and trees by row."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.create_table(
        "batch_replays",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("tree_id", sa.LargeBinary(), nullable=False),
        sa.Column("group_id", sa.Text(), server_default="", nullable=False),
        sa.Column("segment", sa.LargeBinary(), nullable=False),
        sa.Column("end", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_batch_replays")),
    )
    op.create_index("ix_batch_replays_batch", "batch_replays", ["run_id", "ordinal"])
    op.create_index("ix_batch_replays_tree", "batch_replays", ["tree_id"])
    op.create_index("ix_trees_run_row", "trees", ["run_id", "row_digest"])
