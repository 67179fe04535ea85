"""Tables of the control plane: runs, batches, policies, processes, members, dead letters, and the
outbox.
"""

from sqlalchemy import BigInteger, Boolean, Column, Index, Table, Text, UniqueConstraint, false

from services.treestore.storage.schema.columns import (
    Bytes,
    bytes_,
    int_,
    metadata,
    owner,
    serial,
    text,
)

# Facts about the store itself:
# gateway_epoch, desired_revision, alive_ms, lineage_floor, lineage_born, store_id.
meta = Table("meta", metadata, Column("key", Text, primary_key=True), text("value"))

runs = Table(
    "runs",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("request_id", Text, nullable=False, unique=True),
    text("recipe_json"),
    int_("state"),
    text("cause"),
    int_("resume_state"),
    bytes_("split_digest"),
    bytes_("held_out"),  # digests of 32 bytes, one after the other
    text("folder"),
    int_("learner_epoch"),
    int_("step", -1),  # newest policy that is not abandoned; -1 before the base policy
    int_("batches"),
    int_("created_ms"),
    int_("ended_ms"),
    int_("paused_ms"),  # time that does not count as live
    int_("paused_since_ms"),
    int_("removed"),  # by `runs rm`: 0 nothing, 1 all but trees and metrics, 2 trees too, 3 all
    int_("vocabulary"),  # tokens of its model; 0 if unknown
    int_("longest_path"),  # tokens, with the prompt; 0 for any number
    # A node ever joined it.
    Column("joined", Boolean, nullable=False, default=False, server_default=false()),
    bytes_("tokenizer", nullable=True),  # digest of its tokenizer
)

# Tokenizers that decode the texts of joined nodes.
tokenizers = Table(
    "tokenizers", metadata, Column("digest", Bytes, primary_key=True), bytes_("data")
)

batches = Table(
    "batches",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("ordinal", BigInteger, primary_key=True, autoincrement=False),
    int_("learner_epoch"),
    text("use"),
    text("group_ids"),  # JSON list
    text("dropped"),  # always "[]": batches drop no groups
    text("summary_json"),
    int_("stored_ms"),
    int_("failures"),  # learners that failed on it
    int_("failed_epoch"),  # of the last of them
    text("failed"),  # its error
    text("set_aside"),  # reason for not training on it; empty if it is trained on
)

batch_trees = Table(
    "batch_trees",
    metadata,
    serial(),
    Column("run_id", Text, nullable=False),
    bytes_("tree_id"),
    text("use"),
    int_("ordinal"),
    UniqueConstraint("run_id", "tree_id", "use"),
    Index("ix_batch_trees_batch", "run_id", "ordinal"),
    Index("ix_batch_trees_tree", "tree_id"),
)

# Trees of earlier batches that a batch trained on again; their own batches are in `batch_trees`.
batch_replays = Table(
    "batch_replays",
    metadata,
    serial(),
    Column("run_id", Text, nullable=False),
    int_("ordinal"),
    bytes_("tree_id"),
    text("group_id"),  # group of the batch in which it is compared
    bytes_("segment"),  # of the only leaf that takes part; empty for all
    int_("end"),
    Index("ix_batch_replays_batch", "run_id", "ordinal"),
    Index("ix_batch_replays_tree", "tree_id"),
)

policies = Table(
    "policies",
    metadata,
    serial(),
    Column("run_id", Text, nullable=False),
    int_("learner_epoch"),
    int_("step"),
    bytes_("digest"),
    int_("batch_ordinal", -1),
    bytes_("published"),  # PolicyPublished
    Column("abandoned", Boolean, nullable=False),
    int_("stored_ms"),
    UniqueConstraint("run_id", "learner_epoch", "step"),
    Index(
        "ix_policies_run", "run_id", "n"
    ),  # for a page, or the newest, without reading the others
    Index("ix_policies_batch", "run_id", "batch_ordinal", "abandoned"),
    Index("ix_policies_step", "run_id", "abandoned", "step"),
)

# Decisions of a curriculum for training groups, made before they open: the first one is in force.
allocations = Table(
    "allocations",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("ordinal", BigInteger, primary_key=True, autoincrement=False),
    bytes_("record"),  # GroupAllocation
    int_("gateway_epoch"),
    int_("stored_ms"),
)

desired = Table(
    "desired",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("service", Text, primary_key=True),
    int_("count"),
)

processes = Table(
    "processes",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("service", Text, primary_key=True),
    Column("replica", BigInteger, primary_key=True, autoincrement=False),
    bytes_("report"),  # ReportProcessRequest, the newest
    int_("event"),
    int_("reported_ms"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("token_hash", Bytes, primary_key=True),
    text("run_id"),
    int_("expires_ms"),
)

members = Table(
    "members",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("node_id", Text, primary_key=True),
    text("host"),
    Column("joined", Boolean, nullable=False),
    text("public_key"),
    int_("seen_ms"),
    int_("decoded"),  # segments that its engine decoded, summed over steps
    int_("decode_slots"),  # slots of its engine, summed over the same steps
    Column("policy_step", BigInteger),  # that its engine has loaded
)

dead = Table(
    "dead",
    metadata,
    serial(),
    text("service"),
    text("stream"),
    int_("sequence"),
    bytes_("letter"),  # DeadLetter
    text("reason"),
    int_("attempts"),
    int_("stored_ms"),
    int_("replays"),
    # Of subject and message: a wiped log counts from one again, and a message may have several
    # bad events.
    Column("digest", Bytes, nullable=False, server_default=""),
    UniqueConstraint("service", "stream", "sequence", "digest"),
    text("run_id"),  # in the subject
    *owner("dead"),
)

outbox = Table(
    "outbox",
    metadata,
    serial(),
    text("subject"),
    text("msg_id"),
    bytes_("payload"),
    text("traceparent"),
)
