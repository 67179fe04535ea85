"""Bounds by the model of a run, its tokenizer, and batches that ended their learners (ADR 051)."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    for name in ("vocabulary", "longest_path"):
        op.add_column("runs", sa.Column(name, sa.BigInteger(), server_default="0", nullable=False))
    op.add_column(
        "runs", sa.Column("joined", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    op.add_column("runs", sa.Column("tokenizer", sa.LargeBinary(), nullable=True))
    for name in ("failures", "failed_epoch"):
        op.add_column(
            "batches", sa.Column(name, sa.BigInteger(), server_default="0", nullable=False)
        )
    for name in ("failed", "set_aside"):
        op.add_column("batches", sa.Column(name, sa.Text(), server_default="", nullable=False))
    op.create_table(
        "tokenizers",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_tokenizers")),
    )
