"""Tables of the lineage: trees, segments, leaves, scores, and parked and refused events."""

from typing import Any

from sqlalchemy import Boolean, Column, Float, Index, Table, Text, UniqueConstraint

from services.treestore.storage.schema.columns import (
    Bytes,
    bytes_,
    int_,
    metadata,
    owner,
    real,
    serial,
    text,
)

groups = Table(
    "groups",
    metadata,
    serial(),
    Column("run_id", Text, nullable=False),
    Column("group_id", Text, nullable=False),
    text("label"),
    int_("ordinal"),
    int_("purpose"),
    int_("size"),
    int_("opened"),
    int_("done"),  # trees closed, consumed or dropped
    int_("dropped"),  # trees dropped
    int_("state"),  # GroupState
    text("reason"),
    int_("take"),  # trees that suffice; 0 for all
    int_("take_in_order"),  # 1: those of the lowest indices, not those that closed first
    int_("last_step", -1),  # newest policy under which a batch may take it; -1 for any
    UniqueConstraint("run_id", "group_id"),
    UniqueConstraint("run_id", "label", "ordinal"),
    Index("ix_groups_ready", "run_id", "purpose", "state", "ordinal"),
)


def _votes(name: str) -> list[Column[Any]]:
    """Return the columns of the votes of an evaluation's rows."""
    return [
        int_(f"{name}s"),  # rows with a vote
        real(f"{name}_sum"),  # of the winners' values
        int_(f"{name}_correct"),  # winners whose value is at least 1
        real(f"{name}_leaf_sum"),  # of the mean values of these rows' leaves
        real(f"{name}_leaf_correct"),  # of the shares of these rows' leaves that are right
    ]


# Sums by run and label ('' for training), updated by every transaction, for ReadProgress.
tallies = Table(
    "tallies",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("label", Text, primary_key=True),
    int_("prefix"),  # groups 0..prefix-1 have all their trees
    int_("groups"),
    int_("open"),
    int_("closed"),
    int_("consumed"),
    int_("dropped"),
    int_("sampled_tokens"),
    int_("path_tokens"),
    int_("prompt_tokens"),
    int_("prompt_path_tokens"),
    int_("unique_tokens"),  # of leaves' paths, each token once
    int_("used_tokens"),  # those of them that were sampled
    int_("leaves"),
    int_("scored"),
    int_("unscorable"),
    real("reward_sum"),
    int_("correct"),
    *_votes("vote"),  # every leaf counts alike
    *_votes("head_vote"),  # leaves are weighted by the policy's head
)

# Counts by run and name, updated by every transaction, for GetStats: counting rows is expensive.
counts = Table(
    "counts",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    int_("count"),
)

# Number of trees that a node grew to the end.
grown = Table(
    "grown",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("node_id", Text, primary_key=True),
    int_("trees"),
    int_("delivered_ms"),  # when it last delivered a sampled segment, or the end of a tree
)

trees = Table(
    "trees",
    metadata,
    serial(),
    Column("tree_id", Bytes, nullable=False, unique=True),
    Column("run_id", Text, nullable=False),
    Column("group_id", Text, nullable=False),
    int_("tree_index"),
    int_("purpose"),
    text("label"),
    bytes_("row_digest"),
    bytes_("spec"),  # TreeSpec as it was opened
    text("traceparent"),
    text("scorers"),  # JSON list
    text("scorer_weights"),  # JSON list in the order of the scorers; empty where all are equal
    int_("score_deadline_ms"),
    int_("max_claims"),
    int_("state"),
    text("reason"),
    int_("claim_epoch"),
    text("claim_node"),
    int_("claim_due_ms"),
    int_("idle_claims"),  # claims since the last accepted segment
    int_("returns"),
    int_("ticket"),  # of the newest GrowTree
    int_("growth_due_ms"),  # when GrowTree goes out again, unless a node claims the tree
    int_("grown_epoch"),
    text("grown_node"),
    bytes_("grown_digest", nullable=True),  # of the leaves that TreeGrown listed
    int_("score_due_ms"),
    int_("remind_due_ms"),
    int_("opened_ms"),
    int_("closed_ms"),
    int_("segments"),
    int_("sampled_tokens"),
    int_("prompt_tokens"),
    int_("leaves"),
    Column("mean_reward", Float(53)),
    int_("policy_step"),
    text("claim_traceparent"),  # of the span of its first claim
    UniqueConstraint("run_id", "group_id", "tree_index"),
    Index("ix_trees_state_growth", "state", "growth_due_ms"),
    Index("ix_trees_state_score", "state", "score_due_ms"),
    Index("ix_trees_run_state", "run_id", "state"),
    Index("ix_trees_run_row", "run_id", "row_digest"),
    Index("ix_trees_run", "run_id", "n"),  # the newest of a run, or all in order of opening
    Index("ix_trees_run_purpose", "run_id", "purpose", "n"),  # pages of a list
    Index("ix_trees_run_step", "run_id", "policy_step", "n"),
)

segments = Table(
    "segments",
    metadata,
    serial(),
    Column("id", Bytes, nullable=False, unique=True),
    bytes_("tree_id"),
    bytes_("parent"),
    int_("fork"),
    int_("ordinal"),
    int_("kind"),
    int_("origin"),
    int_("length"),
    int_("prefix_sampled"),  # tokens of the answer on the path before it
    bytes_("tokens"),
    bytes_("logprobs"),
    bytes_("sampled_logprobs"),
    int_("policy_epoch"),
    int_("policy_step"),
    bytes_("policy_digest"),
    bytes_("sampling"),  # SamplingParams
    int_("finish"),
    text("producer"),
    text("text"),
    int_("cached_tokens"),
    bytes_("entropies"),
    bytes_("signals"),  # TokenSignals
    Column("receipt", Bytes),  # Receipt of a TOOL segment
    int_("claim_epoch"),
    int_("stored_ms"),
    UniqueConstraint("tree_id", "parent", "fork", "ordinal"),
)

# Actions that were about to change something outside, each noted before it did.
effects = Table(
    "effects",
    metadata,
    Column("action", Bytes, primary_key=True),  # segment that the action ends with
    Column("tree_id", Bytes, nullable=False, index=True),
    text("tool"),  # empty if the store was rebuilt, and only knows that it may have begun
    int_("claim_epoch"),
    int_("begun_ms"),
    Column("receipt", Bytes),  # Receipt of the answer; none if it is not known what became of it
    bytes_("answer"),  # its text, as UTF-8
)

leaves = Table(
    "leaves",
    metadata,
    serial(),
    bytes_("tree_id"),
    bytes_("segment"),
    int_("end"),
    Column("finished", Boolean, nullable=False),  # LeafFinished came
    Column("listed", Boolean, nullable=False),  # TreeGrown lists it, so it must be scored
    text("reason"),
    text("completion"),
    UniqueConstraint("tree_id", "segment", "end"),
)

scores = Table(
    "scores",
    metadata,
    serial(),
    bytes_("tree_id"),
    bytes_("segment"),
    int_("end"),
    text("scorer"),
    text("scorer_version"),
    int_("state"),
    real("value"),
    text("parts"),  # JSON object
    text("reason"),
    text("verifier"),
    real("duration_ms"),
    int_("stored_ms"),
    bytes_("repair", nullable=True),  # message Repair
    UniqueConstraint("tree_id", "segment", "end", "scorer"),
)

# Scores that were given after the run's own; no reward counts them.
rescores = Table(
    "rescores",
    metadata,
    serial(),
    bytes_("tree_id"),
    bytes_("segment"),
    int_("end"),
    text("scorer"),
    text("scorer_version"),
    text("settings"),  # JSON object with sorted keys
    bytes_("settings_digest"),
    int_("state"),
    real("value"),
    text("parts"),  # JSON object
    text("reason"),
    bytes_("repair", nullable=True),  # message Repair
    real("duration_ms"),
    int_("stored_ms"),
    UniqueConstraint(
        "tree_id",
        "segment",
        "end",
        "scorer",
        "scorer_version",
        "settings_digest",
        name="uq_rescores_key",
    ),
)

parked = Table(
    "parked",
    metadata,
    serial(),
    Column("digest", Bytes, nullable=False, unique=True),
    Column("waits_for", Bytes, nullable=False, index=True),
    Column("tree_id", Bytes, nullable=False, index=True),
    text("run_id"),
    text("kind"),
    bytes_("payload"),
    int_("sequence"),
    int_("parked_ms"),
    Index("ix_parked_parked_ms", "parked_ms"),
    *owner("parked"),
)

refused = Table(
    "refused",
    metadata,
    serial(),
    Column("digest", Bytes, nullable=False, unique=True),
    Column("tree_id", Bytes, nullable=False, index=True),
    text("kind"),
    bytes_("segment"),
    int_("end"),
    int_("epoch"),
    text("reason"),
    bytes_("winner"),
    bytes_("payload"),
    int_("stored_ms"),
    text("run_id"),
    Index("ix_refused_segment", "segment"),
    *owner("refused"),
)

late = Table(
    "late",
    metadata,
    serial(),
    Column("digest", Bytes, nullable=False, unique=True),
    Column("tree_id", Bytes, nullable=False, index=True),
    bytes_("payload"),
    text("reason"),
    int_("stored_ms"),
    text("run_id"),
    *owner("late"),
)

# Segments that are too large for a message of the log, by digest; removed once they are ingested
# or their tree is over.
blobs = Table(
    "blobs",
    metadata,
    Column("digest", Bytes, primary_key=True),
    Column("tree_id", Bytes, nullable=False, index=True),
    bytes_("data"),
    int_("stored_ms"),
)

# Growth budgets: the newest round of each tree.
rooms = Table(
    "rooms",
    metadata,
    Column("tree_id", Bytes, primary_key=True),
    int_("leaves"),
    Column("final", Boolean, nullable=False),
    int_("round"),
    int_("set_ms"),
)

# Executed plans, with the digest of the view that caused each.
plans = Table(
    "plans",
    metadata,
    serial(),
    bytes_("tree_id"),
    int_("claim_epoch"),
    int_("number"),
    bytes_("record"),  # PlanRecord
    UniqueConstraint("tree_id", "claim_epoch", "number"),
)
