"""Loads of the nodes' engines: segments that decoded, and slots, summed over steps."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    for name in ("decoded", "decode_slots"):
        column = sa.Column(name, sa.BigInteger(), server_default="0", nullable=False)
        op.add_column("members", column)
