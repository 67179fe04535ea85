"""The tables.

Ids are raw bytes, states are the numbers of their proto enums, times are unix milliseconds of the
store's clock. Rows are removed with their run alone (`control.removal`), but for `parked`, `outbox`
and `blobs`, which are queues.
"""

from services.treestore.storage.schema.columns import metadata
from services.treestore.storage.schema.control import (
    allocations,
    batch_replays,
    batch_trees,
    batches,
    dead,
    desired,
    members,
    meta,
    outbox,
    policies,
    processes,
    runs,
    tokenizers,
    tokens,
)
from services.treestore.storage.schema.lineage import (
    blobs,
    counts,
    effects,
    groups,
    grown,
    late,
    leaves,
    parked,
    plans,
    refused,
    rescores,
    rooms,
    scores,
    segments,
    tallies,
    trees,
)

__all__ = [
    "allocations",
    "batch_replays",
    "batch_trees",
    "batches",
    "blobs",
    "counts",
    "dead",
    "desired",
    "effects",
    "groups",
    "grown",
    "late",
    "leaves",
    "members",
    "meta",
    "metadata",
    "outbox",
    "parked",
    "plans",
    "policies",
    "processes",
    "refused",
    "rescores",
    "rooms",
    "runs",
    "scores",
    "segments",
    "tallies",
    "tokenizers",
    "tokens",
    "trees",
]
