"""The tables. Names are those of the protocol; ids are raw bytes, states are the numbers of their proto enums, times are
unix milliseconds of the store's clock. Rows are never removed, but for `parked` and `outbox`, which are queues.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_N_label)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows by itself only where the key is exactly INTEGER.
_Serial = BigInteger().with_variant(Integer, "sqlite")


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False, default="", server_default="")


def _int(name: str, default: int = 0) -> Column[int]:
    return Column(name, BigInteger, nullable=False, default=default, server_default=str(default))


def _real(name: str) -> Column[float]:
    return Column(name, Float(53), nullable=False, default=0.0, server_default="0")


def _bytes(name: str, nullable: bool = False) -> Column[bytes]:
    return Column(name, LargeBinary, nullable=nullable)


def _serial() -> Column[int]:
    return Column("n", _Serial, primary_key=True, autoincrement=True)


# Facts about the store itself: gateway_epoch, desired_revision, alive_ms, lineage_floor, store_id.
meta = Table("meta", metadata, Column("key", Text, primary_key=True), _text("value"))

runs = Table(
    "runs",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("request_id", Text, nullable=False, unique=True),
    _text("recipe_json"),
    _int("state"),
    _text("cause"),
    _int("resume_state"),
    _bytes("split_digest"),
    _bytes("held_out"),  # digests of 32 bytes, one after the other
    _text("folder"),
    _int("learner_epoch"),
    _int("step", -1),  # newest policy that is not abandoned; -1 before the base policy
    _int("batches"),
    _int("created_ms"),
    _int("ended_ms"),
    _int("paused_ms"),  # time that does not count as live
    _int("paused_since_ms"),
)

groups = Table(
    "groups",
    metadata,
    _serial(),
    Column("run_id", Text, nullable=False),
    Column("group_id", Text, nullable=False),
    _text("label"),
    _int("ordinal"),
    _int("purpose"),
    _int("size"),
    _int("opened"),
    _int("done"),  # trees closed, consumed or dropped
    _int("dropped"),  # trees dropped
    _int("state"),  # GroupState
    _text("reason"),
    UniqueConstraint("run_id", "group_id"),
    UniqueConstraint("run_id", "label", "ordinal"),
    Index("ix_groups_ready", "run_id", "purpose", "state", "ordinal"),
)

# One row per run and label ('' for training): what ReadProgress answers with, kept in step by every transaction.
tallies = Table(
    "tallies",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("label", Text, primary_key=True),
    _int("prefix"),  # groups 0..prefix-1 have all their trees
    _int("groups"),
    _int("open"),
    _int("closed"),
    _int("consumed"),
    _int("dropped"),
    _int("sampled_tokens"),
    _int("path_tokens"),
    _int("prompt_tokens"),
    _int("prompt_path_tokens"),
    _int("leaves"),
    _int("scored"),
    _int("unscorable"),
    _real("reward_sum"),
    _int("correct"),
)

trees = Table(
    "trees",
    metadata,
    _serial(),
    Column("tree_id", LargeBinary, nullable=False, unique=True),
    Column("run_id", Text, nullable=False),
    Column("group_id", Text, nullable=False),
    _int("tree_index"),
    _int("purpose"),
    _text("label"),
    _bytes("row_digest"),
    _bytes("spec"),  # TreeSpec as it was opened
    _text("traceparent"),
    _text("scorers"),  # JSON list
    _int("score_deadline_ms"),
    _int("max_claims"),
    _int("state"),
    _text("reason"),
    _int("claim_epoch"),
    _text("claim_node"),
    _int("claim_due_ms"),
    _int("idle_claims"),  # claims since the last accepted segment
    _int("returns"),
    _int("ticket"),  # of the newest GrowTree
    _int("growth_due_ms"),  # when GrowTree goes out again, if nobody holds a claim
    _int("grown_epoch"),
    _text("grown_node"),
    _bytes("grown_digest", nullable=True),  # of the leaves that TreeGrown listed
    _int("score_due_ms"),
    _int("remind_due_ms"),
    _int("opened_ms"),
    _int("closed_ms"),
    _int("segments"),
    _int("sampled_tokens"),
    _int("prompt_tokens"),
    _int("leaves"),
    Column("mean_reward", Float(53)),
    _int("policy_step"),
    UniqueConstraint("run_id", "group_id", "tree_index"),
    Index("ix_trees_state_growth", "state", "growth_due_ms"),
    Index("ix_trees_state_score", "state", "score_due_ms"),
    Index("ix_trees_run_state", "run_id", "state"),
)

segments = Table(
    "segments",
    metadata,
    _serial(),
    Column("id", LargeBinary, nullable=False, unique=True),
    _bytes("tree_id"),
    _bytes("parent"),
    _int("fork"),
    _int("ordinal"),
    _int("kind"),
    _int("origin"),
    _int("length"),
    _int("prefix_sampled"),  # policy tokens on the path before it
    _bytes("tokens"),
    _bytes("logprobs"),
    _bytes("sampled_logprobs"),
    _int("policy_epoch"),
    _int("policy_step"),
    _bytes("policy_digest"),
    _bytes("sampling"),  # SamplingParams
    _int("finish"),
    _text("producer"),
    _text("text"),
    _int("cached_tokens"),
    _bytes("entropies"),
    _int("claim_epoch"),
    _int("stored_ms"),
    UniqueConstraint("tree_id", "parent", "fork", "ordinal"),
)

leaves = Table(
    "leaves",
    metadata,
    _serial(),
    _bytes("tree_id"),
    _bytes("segment"),
    _int("end"),
    Column("finished", Boolean, nullable=False),  # LeafFinished came
    Column("listed", Boolean, nullable=False),  # TreeGrown names it: it must be scored
    _text("reason"),
    _text("completion"),
    UniqueConstraint("tree_id", "segment", "end"),
)

scores = Table(
    "scores",
    metadata,
    _serial(),
    _bytes("tree_id"),
    _bytes("segment"),
    _int("end"),
    _text("scorer"),
    _text("scorer_version"),
    _int("state"),
    _real("value"),
    _text("parts"),  # JSON object
    _text("reason"),
    _text("verifier"),
    _real("duration_ms"),
    _int("stored_ms"),
    UniqueConstraint("tree_id", "segment", "end", "scorer"),
)

parked = Table(
    "parked",
    metadata,
    _serial(),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("waits_for", LargeBinary, nullable=False, index=True),
    Column("tree_id", LargeBinary, nullable=False, index=True),
    _text("run_id"),
    _text("kind"),
    _bytes("payload"),
    _int("sequence"),
    _int("parked_ms"),
)

refused = Table(
    "refused",
    metadata,
    _serial(),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("tree_id", LargeBinary, nullable=False, index=True),
    _text("kind"),
    _bytes("segment"),
    _int("end"),
    _int("epoch"),
    _text("reason"),
    _bytes("winner"),
    _bytes("payload"),
    _int("stored_ms"),
)

late = Table(
    "late",
    metadata,
    _serial(),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("tree_id", LargeBinary, nullable=False, index=True),
    _bytes("payload"),
    _text("reason"),
    _int("stored_ms"),
)

batches = Table(
    "batches",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("ordinal", BigInteger, primary_key=True, autoincrement=False),
    _int("learner_epoch"),
    _text("use"),
    _text("group_ids"),  # JSON list
    _text("dropped"),  # JSON list of [group, reason]
    _text("summary_json"),
    _int("stored_ms"),
)

batch_trees = Table(
    "batch_trees",
    metadata,
    _serial(),
    Column("run_id", Text, nullable=False),
    _bytes("tree_id"),
    _text("use"),
    _int("ordinal"),
    UniqueConstraint("run_id", "tree_id", "use"),
    Index("ix_batch_trees_batch", "run_id", "ordinal"),
)

policies = Table(
    "policies",
    metadata,
    _serial(),
    Column("run_id", Text, nullable=False),
    _int("learner_epoch"),
    _int("step"),
    _bytes("digest"),
    _int("batch_ordinal", -1),
    _bytes("published"),  # PolicyPublished
    Column("abandoned", Boolean, nullable=False),
    _int("stored_ms"),
    UniqueConstraint("run_id", "learner_epoch", "step"),
)

desired = Table(
    "desired",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("service", Text, primary_key=True),
    _int("count"),
)

processes = Table(
    "processes",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("service", Text, primary_key=True),
    Column("replica", BigInteger, primary_key=True, autoincrement=False),
    _bytes("report"),  # ReportProcessRequest, the newest
    _int("event"),
    _int("reported_ms"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("token_hash", LargeBinary, primary_key=True),
    _text("run_id"),
    _int("expires_ms"),
)

members = Table(
    "members",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("node_id", Text, primary_key=True),
    _text("host"),
    Column("joined", Boolean, nullable=False),
    _text("public_key"),
    _int("seen_ms"),
)

dead = Table(
    "dead",
    metadata,
    _serial(),
    _text("service"),
    _text("stream"),
    _int("sequence"),
    _bytes("letter"),  # DeadLetter
    _text("reason"),
    _int("attempts"),
    _int("stored_ms"),
    _int("replays"),
    UniqueConstraint("service", "stream", "sequence"),
)

outbox = Table(
    "outbox",
    metadata,
    _serial(),
    _text("subject"),
    _text("msg_id"),
    _bytes("payload"),
    _text("traceparent"),
)
