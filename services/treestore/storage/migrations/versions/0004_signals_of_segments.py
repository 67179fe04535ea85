"""Signals of segments."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.add_column(
        "segments",
        sa.Column("signals", sa.LargeBinary(), server_default=sa.text("''"), nullable=False),
    )
