"""Blobs and plans; the span of a tree's first claim; the content in the key of dead letters."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def _serial() -> sa.Column[int]:
    return sa.Column(
        "n",
        sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
        autoincrement=True,
        nullable=False,
    )


def upgrade() -> None:
    """Apply the migration."""
    op.create_table(
        "blobs",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("tree_id", sa.LargeBinary(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("stored_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_blobs")),
    )
    op.create_index(op.f("ix_blobs_tree_id"), "blobs", ["tree_id"], unique=False)
    op.create_table(
        "plans",
        _serial(),
        sa.Column("tree_id", sa.LargeBinary(), nullable=False),
        sa.Column("claim_epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("number", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_plans")),
        sa.UniqueConstraint(
            "tree_id", "claim_epoch", "number", name=op.f("uq_plans_tree_id_claim_epoch_number")
        ),
    )
    op.add_column(
        "trees", sa.Column("claim_traceparent", sa.Text(), server_default="", nullable=False)
    )
    with op.batch_alter_table("dead") as dead:
        dead.add_column(
            sa.Column("digest", sa.LargeBinary(), server_default=sa.text("''"), nullable=False)
        )
        dead.drop_constraint(op.f("uq_dead_service_stream_sequence"), type_="unique")
        dead.create_unique_constraint(
            op.f("uq_dead_service_stream_sequence_digest"),
            ["service", "stream", "sequence", "digest"],
        )
