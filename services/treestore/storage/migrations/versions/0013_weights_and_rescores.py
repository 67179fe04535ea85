"""Weights of scorers, and scores that were given after the run's own (ADR 061)."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.add_column(
        "trees", sa.Column("scorer_weights", sa.Text(), server_default="", nullable=False)
    )
    op.create_table(
        "rescores",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("tree_id", sa.LargeBinary(), nullable=False),
        sa.Column("segment", sa.LargeBinary(), nullable=False),
        sa.Column("end", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("scorer", sa.Text(), server_default="", nullable=False),
        sa.Column("scorer_version", sa.Text(), server_default="", nullable=False),
        sa.Column("settings", sa.Text(), server_default="", nullable=False),
        sa.Column("settings_digest", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("value", sa.Float(precision=53), server_default="0", nullable=False),
        sa.Column("parts", sa.Text(), server_default="", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("repair", sa.LargeBinary(), nullable=True),
        sa.Column("duration_ms", sa.Float(precision=53), server_default="0", nullable=False),
        sa.Column("stored_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_rescores")),
        sa.UniqueConstraint(
            "tree_id",
            "segment",
            "end",
            "scorer",
            "scorer_version",
            "settings_digest",
            name="uq_rescores_key",
        ),
    )
