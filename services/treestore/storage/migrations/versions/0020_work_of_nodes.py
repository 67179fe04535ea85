"""Work of nodes: the policy that each has loaded, and when it last delivered something."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.add_column("members", sa.Column("policy_step", sa.BigInteger(), nullable=True))
    newest = sa.Column("delivered_ms", sa.BigInteger(), server_default="0", nullable=False)
    op.add_column("grown", newest)
