"""Indexes by which pages of a run's trees are read: of a purpose, and of a policy step."""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_INDEXES = {
    "ix_trees_run_purpose": ["run_id", "purpose", "n"],
    "ix_trees_run_step": ["run_id", "policy_step", "n"],
}


def upgrade() -> None:
    """Apply the migration."""
    for name, columns in _INDEXES.items():
        op.create_index(name, "trees", columns)
