"""Texts of runs that a node ever joined: decoded here from the tokens, whatever the messages say.

A segment's message does not prove its sender, so the texts of all nodes of such a run are decoded
(ADR 051).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from sqlalchemy import BindParameter, Connection, bindparam, select

from banyan.segment import Kind
from banyan.tree import Leaf
from services.treestore.storage import schema, tokenizers
from services.treestore.storage.tokenizers import Decoder
from services.treestore.unit_of_work.unit_of_work import UnitOfWork

_SEGMENTS = schema.segments.c
_KEYS: BindParameter[list[bytes]] = bindparam("keys", expanding=True)
_TOKENS = select(
    _SEGMENTS.id, _SEGMENTS.parent, _SEGMENTS.fork, _SEGMENTS.kind, _SEGMENTS.tokens
).where(_SEGMENTS.tree_id.in_(_KEYS))


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


def decode(connection: Connection, work: UnitOfWork) -> None:
    """Replace the texts of segments and leaves that are about to be written by their decoded
    tokens.
    """
    decoders = _decoders(connection, work)
    if not decoders:
        return
    for values in work.new_segments:
        decoder = decoders.get(work.trees[values["tree_id"]].run_id)  # type: ignore[index]
        if decoder is not None:
            tokens = np.frombuffer(values["tokens"], "<i4")  # type: ignore[call-overload]
            values["text"] = decoder.decode(tokens)
    changed = [key for key in work.changed_leaves if work.trees[key[0]].run_id in decoders]
    segments = _segments(connection, work, {tree_id for tree_id, _ in changed})
    for tree_id, leaf in changed:
        row = work.part(tree_id).leaves[leaf]
        if row.finished:
            decoder = decoders[work.trees[tree_id].run_id]
            row.completion = decoder.decode(answer(segments, leaf))


def _decoders(connection: Connection, work: UnitOfWork) -> dict[str, Decoder]:
    """Return the decoders of runs that a node joined.

    A run of the scripted engine has no tokenizer, so the texts of its nodes are kept.
    """
    return {
        run_id: tokenizers.decoder(connection, limits.tokenizer)
        for run_id, limits in work.limits.items()
        if limits.joined and limits.tokenizer
    }


def _segments(
    connection: Connection, work: UnitOfWork, trees: set[bytes]
) -> dict[bytes, SegmentTokens]:
    segments: dict[bytes, SegmentTokens] = {}
    if trees:
        for row in connection.execute(_TOKENS, {"keys": sorted(trees)}):
            segments[row.id] = SegmentTokens(row.parent, row.fork, row.kind, row.tokens)
    for new in work.new_segments:
        if new["tree_id"] in trees:
            names = SegmentTokens.__dataclass_fields__
            tokens = SegmentTokens(**{name: new[name] for name in names})  # type: ignore[arg-type]
            segments[new["id"]] = tokens  # type: ignore[index]
    return segments


def answer(
    segments: Mapping[bytes, SegmentTokens], leaf: Leaf
) -> "np.ndarray[tuple[int, ...], np.dtype[np.int32]]":
    """Return the tokens of a path after its prompt."""
    parts: list[bytes] = []
    segment_id, end = leaf.segment, leaf.end
    while segment_id and segments[segment_id].kind != Kind.PROMPT:
        segment = segments[segment_id]
        parts.append(segment.tokens[: 4 * end])
        segment_id, end = segment.parent, segment.fork
    return np.frombuffer(b"".join(reversed(parts)), "<i4")
