"""Tokens of paths: the segments on the way to a place, and what was said since the last answer."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from sqlalchemy import BindParameter, Connection, bindparam, select

from banyan.segment import IntTokens
from banyan.tree import GIVEN
from services.treestore.storage import schema
from services.treestore.storage.sql import chunks

_SEGMENTS = schema.segments.c
_KEYS: BindParameter[list[bytes]] = bindparam("keys", expanding=True)
_COLUMNS = (_SEGMENTS.id, _SEGMENTS.parent, _SEGMENTS.fork, _SEGMENTS.kind, _SEGMENTS.tokens)
_OF_TREES = select(*_COLUMNS).where(_SEGMENTS.tree_id.in_(_KEYS))
_PATH = (
    select(_SEGMENTS.id, _SEGMENTS.parent)
    .where(_SEGMENTS.id.in_(_KEYS))
    .cte("path", recursive=True)
)
_PATH = _PATH.union(
    select(_SEGMENTS.id, _SEGMENTS.parent).where(_SEGMENTS.id == _PATH.c.parent)
)  # a place that several paths share comes once
_OF_PATHS = select(*_COLUMNS).join(_PATH, _SEGMENTS.id == _PATH.c.id)


@dataclass(frozen=True, slots=True)
class SegmentTokens:
    """The tokens of a segment, and its place.

    parent: id of its parent
    fork: tokens of the parent that it continues
    kind: number of the `Kind`
    tokens: token ids as little-endian int32
    """

    parent: bytes
    fork: int
    kind: int
    tokens: bytes


def of_paths(connection: Connection, ends: Collection[bytes]) -> dict[bytes, SegmentTokens]:
    """Return the stored segments on the ways to segments, by id, with these."""
    found: dict[bytes, SegmentTokens] = {}
    for chunk in chunks(sorted(ends)):
        for row in connection.execute(_OF_PATHS, {"keys": chunk}):
            found[row.id] = SegmentTokens(row.parent, row.fork, row.kind, row.tokens)
    return found


def of_trees(connection: Connection, trees: Collection[bytes]) -> dict[bytes, SegmentTokens]:
    """Return the stored segments of trees, by id."""
    found: dict[bytes, SegmentTokens] = {}
    for chunk in chunks(sorted(trees)):
        for row in connection.execute(_OF_TREES, {"keys": chunk}):
            found[row.id] = SegmentTokens(row.parent, row.fork, row.kind, row.tokens)
    return found


def split(
    segments: Mapping[bytes, SegmentTokens], segment: bytes, end: int
) -> tuple[IntTokens, IntTokens]:
    """Return the tokens of a path up to its prompt's or its last answer's end, and those behind.

    segments: by id, with all of the path to (segment, end)
    """
    context: list[bytes] = []
    said: list[bytes] = []
    part = said
    while segment:
        row = segments[segment]
        if row.kind in GIVEN:
            part = context
        part.append(row.tokens[: 4 * end])
        segment, end = row.parent, row.fork
    return _joined(context), _joined(said)


def _joined(parts: list[bytes]) -> IntTokens:
    return np.frombuffer(b"".join(reversed(parts)), "<i4")
