"""An index of the refused segments: each transaction asks for those that its events name."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.create_index("ix_refused_segment", "refused", ["segment"])
