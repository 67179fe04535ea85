"""Tokens of leaves' paths counted once. Of trees before it only their sums are known: they count as
if no sampled token had been in vain, unless there are more of them than on paths.
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_COLUMNS = ("unique_tokens", "used_tokens")


def upgrade() -> None:
    """Apply the migration."""
    for name in _COLUMNS:
        column = sa.Column(name, sa.BigInteger(), server_default="0", nullable=False)
        op.add_column("tallies", column)
        op.execute(
            f"UPDATE tallies SET {name} = CASE WHEN sampled_tokens < path_tokens"
            " THEN sampled_tokens ELSE path_tokens END"
        )
