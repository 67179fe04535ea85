"""Texts of runs that a node ever joined: decoded here from the tokens, whatever the messages say.

A segment's message does not prove its sender, so the texts of all nodes of such a run are decoded
(ADR 051). The text of an environment's answer is proven by its receipt and stays; the text of the
action that it answers, which comes with the receipt, is decoded (ADR 070).
"""

import numpy as np
from sqlalchemy import Connection

from banyan.segment import Kind
from banyan.v1 import tree_pb2
from services.treestore.storage.mapping import Values
from services.treestore.storage.tokens import path_tokens, tokenizers
from services.treestore.storage.tokens.path_tokens import SegmentTokens
from services.treestore.storage.tokens.tokenizers import Decoder
from services.treestore.unit_of_work.unit_of_work import UnitOfWork


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
            _decode_segment(work, values, decoder)
    changed = [key for key in work.changed_leaves if work.trees[key[0]].run_id in decoders]
    segments = _segments(connection, work, {tree_id for tree_id, _ in changed})
    for tree_id, leaf in changed:
        row = work.part(tree_id).leaves[leaf]
        if row.finished:
            decoder = decoders[work.trees[tree_id].run_id]
            _, said_T = path_tokens.split(segments, leaf.segment, leaf.end)
            row.completion = decoder.decode(said_T)


def _decode_segment(work: UnitOfWork, values: Values, decoder: Decoder) -> None:
    new = _tokens(values)
    if new.kind != Kind.TOOL:
        values["text"] = decoder.decode(np.frombuffer(new.tokens, "<i4"))
    elif new.parent in work.tokens:
        receipt = tree_pb2.Receipt.FromString(values["receipt"])  # type: ignore[arg-type]
        _, said_T = path_tokens.split(work.tokens, new.parent, new.fork)
        receipt.call = decoder.decode(said_T)
        values["receipt"] = receipt.SerializeToString()


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
    segments = path_tokens.of_trees(connection, trees)
    for new in work.new_segments:
        if new["tree_id"] in trees:
            segments[new["id"]] = _tokens(new)  # type: ignore[index]
    return segments


def _tokens(new: Values) -> SegmentTokens:
    return SegmentTokens(
        parent=new["parent"],  # type: ignore[arg-type]
        fork=new["fork"],  # type: ignore[arg-type]
        kind=new["kind"],  # type: ignore[arg-type]
        tokens=new["tokens"],  # type: ignore[arg-type]
    )
