"""${message}."""

import sqlalchemy as sa
from alembic import op

revision = "${up_revision}"
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies it."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """The store goes forward only: rows are lineage."""
    raise NotImplementedError("the store's schema is never taken back")
