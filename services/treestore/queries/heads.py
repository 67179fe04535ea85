"""Scores of the policy's learned head on the paths to leaves. Read only."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, bindparam, select

from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from services.treestore.storage import schema
from services.treestore.storage.sql import chunks

Heads = Mapping[bytes, bytes]
"""Segment → the head's scores of its tokens, half floats."""
_BYTES = 2  # of a score
_SIGNALS = select(schema.segments.c.id, schema.segments.c.signals).where(
    schema.segments.c.tree_id.in_(bindparam("keys", expanding=True)),
    schema.segments.c.signals != b"",
)


def read(connection: Connection, tree_ids: Collection[bytes]) -> Heads:
    """Return the head's scores in trees, of the segments that have any."""
    found: dict[bytes, bytes] = {}
    for chunk in chunks(sorted(tree_ids)):
        for segment_id, signals in connection.execute(_SIGNALS, {"keys": chunk}):
            if head := tree_pb2.TokenSignals.FromString(signals).head:
                found[segment_id] = head
    return found


def last(segments: Mapping[bytes, Row[Any]], heads: Heads, leaf: Leaf) -> float | None:
    """Return the last score on the path to a leaf; None if the path has none."""
    segment_id, end = leaf.segment, leaf.end
    while segment_id:
        head = heads.get(segment_id, b"")
        if 0 < end * _BYTES <= len(head):
            return float(np.frombuffer(head, "<f2", 1, (end - 1) * _BYTES)[0])
        row = segments[segment_id]
        segment_id, end = row.parent, row.fork
    return None
