"""Allocations of groups, the trees that suffice for a group, and the last policy for which it may
be used.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.create_table(
        "allocations",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("gateway_epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("stored_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("run_id", "ordinal", name=op.f("pk_allocations")),
    )
    for name, default in {"take": "0", "take_in_order": "0", "last_step": "-1"}.items():
        op.add_column(
            "groups", sa.Column(name, sa.BigInteger(), server_default=default, nullable=False)
        )
