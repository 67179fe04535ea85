"""Tables of the control plane."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.create_table(
        "batch_trees",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("tree_id", sa.LargeBinary(), nullable=False),
        sa.Column("use", sa.Text(), server_default="", nullable=False),
        sa.Column("ordinal", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_batch_trees")),
        sa.UniqueConstraint(
            "run_id", "tree_id", "use", name=op.f("uq_batch_trees_run_id_tree_id_use")
        ),
    )
    op.create_index("ix_batch_trees_batch", "batch_trees", ["run_id", "ordinal"], unique=False)
    op.create_table(
        "batches",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("learner_epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("use", sa.Text(), server_default="", nullable=False),
        sa.Column("group_ids", sa.Text(), server_default="", nullable=False),
        sa.Column("dropped", sa.Text(), server_default="", nullable=False),
        sa.Column("summary_json", sa.Text(), server_default="", nullable=False),
        sa.Column("stored_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("run_id", "ordinal", name=op.f("pk_batches")),
    )
    op.create_table(
        "dead",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("service", sa.Text(), server_default="", nullable=False),
        sa.Column("stream", sa.Text(), server_default="", nullable=False),
        sa.Column("sequence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("letter", sa.LargeBinary(), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("stored_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("replays", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_dead")),
        sa.UniqueConstraint(
            "service", "stream", "sequence", name=op.f("uq_dead_service_stream_sequence")
        ),
    )
    op.create_table(
        "desired",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("service", sa.Text(), nullable=False),
        sa.Column("count", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("run_id", "service", name=op.f("pk_desired")),
    )
    op.create_table(
        "members",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), server_default="", nullable=False),
        sa.Column("joined", sa.Boolean(), nullable=False),
        sa.Column("public_key", sa.Text(), server_default="", nullable=False),
        sa.Column("seen_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("run_id", "node_id", name=op.f("pk_members")),
    )
    op.create_table(
        "meta",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_meta")),
    )
    op.create_table(
        "outbox",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("subject", sa.Text(), server_default="", nullable=False),
        sa.Column("msg_id", sa.Text(), server_default="", nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("traceparent", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_outbox")),
    )
    op.create_table(
        "policies",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("learner_epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("step", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("batch_ordinal", sa.BigInteger(), server_default="-1", nullable=False),
        sa.Column("published", sa.LargeBinary(), nullable=False),
        sa.Column("abandoned", sa.Boolean(), nullable=False),
        sa.Column("stored_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_policies")),
        sa.UniqueConstraint(
            "run_id", "learner_epoch", "step", name=op.f("uq_policies_run_id_learner_epoch_step")
        ),
    )
    op.create_table(
        "processes",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("service", sa.Text(), nullable=False),
        sa.Column("replica", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("report", sa.LargeBinary(), nullable=False),
        sa.Column("event", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("reported_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("run_id", "service", "replica", name=op.f("pk_processes")),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("recipe_json", sa.Text(), server_default="", nullable=False),
        sa.Column("state", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cause", sa.Text(), server_default="", nullable=False),
        sa.Column("resume_state", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("split_digest", sa.LargeBinary(), nullable=False),
        sa.Column("held_out", sa.LargeBinary(), nullable=False),
        sa.Column("folder", sa.Text(), server_default="", nullable=False),
        sa.Column("learner_epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("step", sa.BigInteger(), server_default="-1", nullable=False),
        sa.Column("batches", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("paused_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("paused_since_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_runs")),
        sa.UniqueConstraint("request_id", name=op.f("uq_runs_request_id")),
    )
    op.create_table(
        "tokens",
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("run_id", sa.Text(), server_default="", nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_tokens")),
    )


def downgrade() -> None:
    """Raise: the store only goes forward, as its rows are the lineage."""
    raise NotImplementedError("the store's schema is never taken back")
