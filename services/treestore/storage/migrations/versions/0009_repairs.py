"""Repairs of a leaf's path, as its scorer reports them (SCOPE)."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.add_column("scores", sa.Column("repair", sa.LargeBinary(), nullable=True))
