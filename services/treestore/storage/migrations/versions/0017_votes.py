"""Votes of evaluations: of each row the answer that wins (ADR 076)."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_COUNTS = ("s", "_correct")
_SUMS = ("_sum", "_leaf_sum", "_leaf_correct")


def upgrade() -> None:
    """Apply the migration."""
    for name in ("vote", "head_vote"):
        for end in _COUNTS:
            _add(name + end, sa.BigInteger())
        for end in _SUMS:
            _add(name + end, sa.Float(precision=53))


def _add(name: str, kind: sa.BigInteger | sa.Float[float]) -> None:
    op.add_column("tallies", sa.Column(name, kind, server_default="0", nullable=False))
