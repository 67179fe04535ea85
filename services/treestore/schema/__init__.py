"""The tables. Ids are raw bytes, states are the numbers of their proto enums, times are unix milliseconds of the store's
clock. Rows are never removed, but for `parked`, `outbox` and `blobs`, which are queues.
"""

from services.treestore.schema.columns import metadata
from services.treestore.schema.control import (
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
    tokens,
)
from services.treestore.schema.lineage import (
    blobs,
    groups,
    late,
    leaves,
    parked,
    plans,
    refused,
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
    "dead",
    "desired",
    "groups",
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
    "rooms",
    "runs",
    "scores",
    "segments",
    "tallies",
    "tokens",
    "trees",
]
