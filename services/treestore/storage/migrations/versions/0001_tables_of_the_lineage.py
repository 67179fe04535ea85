"""Tables of the lineage."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.create_table(
        "groups",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), server_default="", nullable=False),
        sa.Column("ordinal", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("purpose", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("size", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("opened", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("done", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("dropped", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("state", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_groups")),
        sa.UniqueConstraint("run_id", "group_id", name=op.f("uq_groups_run_id_group_id")),
        sa.UniqueConstraint(
            "run_id", "label", "ordinal", name=op.f("uq_groups_run_id_label_ordinal")
        ),
    )
    op.create_index(
        "ix_groups_ready", "groups", ["run_id", "purpose", "state", "ordinal"], unique=False
    )
    op.create_table(
        "late",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("tree_id", sa.LargeBinary(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("stored_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_late")),
        sa.UniqueConstraint("digest", name=op.f("uq_late_digest")),
    )
    op.create_index(op.f("ix_late_tree_id"), "late", ["tree_id"], unique=False)
    op.create_table(
        "leaves",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("tree_id", sa.LargeBinary(), nullable=False),
        sa.Column("segment", sa.LargeBinary(), nullable=False),
        sa.Column("end", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("finished", sa.Boolean(), nullable=False),
        sa.Column("listed", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("completion", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_leaves")),
        sa.UniqueConstraint(
            "tree_id", "segment", "end", name=op.f("uq_leaves_tree_id_segment_end")
        ),
    )
    op.create_table(
        "parked",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("waits_for", sa.LargeBinary(), nullable=False),
        sa.Column("tree_id", sa.LargeBinary(), nullable=False),
        sa.Column("run_id", sa.Text(), server_default="", nullable=False),
        sa.Column("kind", sa.Text(), server_default="", nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("parked_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_parked")),
        sa.UniqueConstraint("digest", name=op.f("uq_parked_digest")),
    )
    op.create_index(op.f("ix_parked_tree_id"), "parked", ["tree_id"], unique=False)
    op.create_index(op.f("ix_parked_waits_for"), "parked", ["waits_for"], unique=False)
    op.create_table(
        "refused",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("tree_id", sa.LargeBinary(), nullable=False),
        sa.Column("kind", sa.Text(), server_default="", nullable=False),
        sa.Column("segment", sa.LargeBinary(), nullable=False),
        sa.Column("end", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("winner", sa.LargeBinary(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("stored_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_refused")),
        sa.UniqueConstraint("digest", name=op.f("uq_refused_digest")),
    )
    op.create_index(op.f("ix_refused_tree_id"), "refused", ["tree_id"], unique=False)
    op.create_table(
        "scores",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("tree_id", sa.LargeBinary(), nullable=False),
        sa.Column("segment", sa.LargeBinary(), nullable=False),
        sa.Column("end", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("scorer", sa.Text(), server_default="", nullable=False),
        sa.Column("scorer_version", sa.Text(), server_default="", nullable=False),
        sa.Column("state", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("value", sa.Float(precision=53), server_default="0", nullable=False),
        sa.Column("parts", sa.Text(), server_default="", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("verifier", sa.Text(), server_default="", nullable=False),
        sa.Column("duration_ms", sa.Float(precision=53), server_default="0", nullable=False),
        sa.Column("stored_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_scores")),
        sa.UniqueConstraint(
            "tree_id", "segment", "end", "scorer", name=op.f("uq_scores_tree_id_segment_end_scorer")
        ),
    )
    op.create_table(
        "segments",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("id", sa.LargeBinary(), nullable=False),
        sa.Column("tree_id", sa.LargeBinary(), nullable=False),
        sa.Column("parent", sa.LargeBinary(), nullable=False),
        sa.Column("fork", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("ordinal", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("kind", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("origin", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("length", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("prefix_sampled", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("tokens", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("sampled_logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("policy_epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("policy_step", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("policy_digest", sa.LargeBinary(), nullable=False),
        sa.Column("sampling", sa.LargeBinary(), nullable=False),
        sa.Column("finish", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("producer", sa.Text(), server_default="", nullable=False),
        sa.Column("text", sa.Text(), server_default="", nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("entropies", sa.LargeBinary(), nullable=False),
        sa.Column("claim_epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("stored_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_segments")),
        sa.UniqueConstraint("id", name=op.f("uq_segments_id")),
        sa.UniqueConstraint(
            "tree_id",
            "parent",
            "fork",
            "ordinal",
            name=op.f("uq_segments_tree_id_parent_fork_ordinal"),
        ),
    )
    op.create_table(
        "tallies",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("prefix", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("groups", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("open", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("closed", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("consumed", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("dropped", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("sampled_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("path_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("prompt_path_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("leaves", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("scored", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("unscorable", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("reward_sum", sa.Float(precision=53), server_default="0", nullable=False),
        sa.Column("correct", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("run_id", "label", name=op.f("pk_tallies")),
    )
    op.create_table(
        "trees",
        sa.Column(
            "n",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("tree_id", sa.LargeBinary(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("tree_index", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("purpose", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("label", sa.Text(), server_default="", nullable=False),
        sa.Column("row_digest", sa.LargeBinary(), nullable=False),
        sa.Column("spec", sa.LargeBinary(), nullable=False),
        sa.Column("traceparent", sa.Text(), server_default="", nullable=False),
        sa.Column("scorers", sa.Text(), server_default="", nullable=False),
        sa.Column("score_deadline_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("max_claims", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("state", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("claim_epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("claim_node", sa.Text(), server_default="", nullable=False),
        sa.Column("claim_due_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("idle_claims", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("returns", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("ticket", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("growth_due_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("grown_epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("grown_node", sa.Text(), server_default="", nullable=False),
        sa.Column("grown_digest", sa.LargeBinary(), nullable=True),
        sa.Column("score_due_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("remind_due_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("opened_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("closed_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("segments", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("sampled_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("leaves", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("mean_reward", sa.Float(precision=53), nullable=True),
        sa.Column("policy_step", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_trees")),
        sa.UniqueConstraint(
            "run_id", "group_id", "tree_index", name=op.f("uq_trees_run_id_group_id_tree_index")
        ),
        sa.UniqueConstraint("tree_id", name=op.f("uq_trees_tree_id")),
    )
    op.create_index("ix_trees_run_state", "trees", ["run_id", "state"], unique=False)
    op.create_index("ix_trees_state_growth", "trees", ["state", "growth_due_ms"], unique=False)
    op.create_index("ix_trees_state_score", "trees", ["state", "score_due_ms"], unique=False)


def downgrade() -> None:
    """Raise: the store only goes forward, as its rows are the lineage."""
    raise NotImplementedError("the store's schema is never taken back")
