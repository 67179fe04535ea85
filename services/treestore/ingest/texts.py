"""Texts of runs that a node ever joined: decoded here from the tokens, whoever sampled them and whatever was said of them.

By a segment's message nobody can tell whose it is, so all of such a run are decoded (ADR 051).
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

_S = schema.segments.c
_KEYS: BindParameter[list[bytes]] = bindparam("keys", expanding=True)
_PIECES = select(_S.id, _S.parent, _S.fork, _S.kind, _S.tokens).where(_S.tree_id.in_(_KEYS))


@dataclass(frozen=True, slots=True)
class SegmentTokens:
    """A segment as texts need it. tokens: little-endian int32."""

    parent: bytes
    fork: int
    kind: int
    tokens: bytes


def decode(connection: Connection, book: UnitOfWork) -> None:
    """Puts what the tokens say where a message told a text, in segments and leaves that are about to be written."""
    decoders = _decoders(connection, book)
    if not decoders:
        return
    for values in book.new_segments:
        decoder = decoders.get(book.trees[values["tree_id"]].run_id)  # type: ignore[index]
        if decoder is not None:
            values["text"] = decoder.decode(np.frombuffer(values["tokens"], "<i4"))  # type: ignore[call-overload]
    ended = [key for key in book.changed_leaves if book.trees[key[0]].run_id in decoders]
    pieces = _pieces(connection, book, {tree_id for tree_id, _ in ended})
    for tree_id, leaf in ended:
        row = book.part(tree_id).leaves[leaf]
        if row.finished:
            row.completion = decoders[book.trees[tree_id].run_id].decode(answer(pieces, leaf))


def _decoders(connection: Connection, book: UnitOfWork) -> dict[str, Decoder]:
    """By run, for those that a node joined. A run of the scripted engine has no tokenizer, and its nodes' texts stand."""
    return {
        run_id: tokenizers.decoder(connection, limits.tokenizer)
        for run_id, limits in book.limits.items()
        if limits.joined and limits.tokenizer
    }


def _pieces(
    connection: Connection, book: UnitOfWork, trees: set[bytes]
) -> dict[bytes, SegmentTokens]:
    found: dict[bytes, SegmentTokens] = {}
    if trees:
        for row in connection.execute(_PIECES, {"keys": sorted(trees)}):
            found[row.id] = SegmentTokens(row.parent, row.fork, row.kind, row.tokens)
    for new in book.new_segments:
        if new["tree_id"] in trees:
            found[new["id"]] = SegmentTokens(new["parent"], new["fork"], new["kind"], new["tokens"])  # type: ignore[index, arg-type]
    return found


def answer(
    pieces: Mapping[bytes, SegmentTokens], leaf: Leaf
) -> "np.ndarray[tuple[int, ...], np.dtype[np.int32]]":
    """The tokens of a path behind its prompt."""
    parts: list[bytes] = []
    at, end = leaf.segment, leaf.end
    while at and pieces[at].kind != Kind.PROMPT:
        piece = pieces[at]
        parts.append(piece.tokens[: 4 * end])
        at, end = piece.parent, piece.fork
    return np.frombuffer(b"".join(reversed(parts)), "<i4")
