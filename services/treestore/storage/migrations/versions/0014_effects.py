"""Actions that change something outside, noted before they do (ADR 068)."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.create_table(
        "effects",
        sa.Column("action", sa.LargeBinary(), nullable=False),
        sa.Column("tree_id", sa.LargeBinary(), nullable=False),
        sa.Column("tool", sa.Text(), server_default="", nullable=False),
        sa.Column("claim_epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("begun_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("receipt", sa.LargeBinary(), nullable=True),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("action", name=op.f("pk_effects")),
    )
    op.create_index(op.f("ix_effects_tree_id"), "effects", ["tree_id"])
