"""Receipts of TOOL segments (ADR 059)."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.add_column("segments", sa.Column("receipt", sa.LargeBinary(), nullable=True))
