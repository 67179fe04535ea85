"""Growth budgets of growing trees."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.create_table(
        "rooms",
        sa.Column("tree_id", sa.LargeBinary(), nullable=False),
        sa.Column("leaves", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("round", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("set_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("tree_id", name=op.f("pk_rooms")),
    )
