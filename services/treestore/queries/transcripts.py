"""Transcripts of accepted leaves: the text, the row, and the scorers that owe a score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from banyan import order, reward
from banyan.plugins.filter import HEAD_VOTE
from banyan.segment import Kind
from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.queries import heads, turns
from services.treestore.storage import mapping, schema
from services.treestore.storage.sql import chunks, rows_in
from services.treestore.unit_of_work.rows import ANSWER, DROPPED, GROWING, SCORING

MOST_BYTES = 1 << 20  # of an answer about leaves; whoever reads it does nothing else meanwhile
Key = tuple[bytes, Leaf]
_COLUMNS = (
    *mapping.PLACE_COLUMNS,
    "tree_id",
    "kind",
    "length",
    "prefix_sampled",
    "text",
    "finish",
    "receipt",
)
_SEGMENTS = select(*(schema.segments.c[name] for name in _COLUMNS)).where(
    schema.segments.c.tree_id.in_(bindparam("keys", expanding=True))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafRows:
    """Rows of trees, as transcripts need them.

    trees: trees by id
    segments: segments by id, without tokens
    leaves: leaves by tree and place
    scores: tree, place and scorer of each score
    refused: tree, place and epoch of each refused leaf
    """

    trees: Mapping[bytes, Row[Any]]
    segments: Mapping[bytes, Row[Any]]
    leaves: Mapping[Key, Row[Any]]
    scores: frozenset[tuple[Key, str]]
    refused: frozenset[tuple[bytes, Leaf, int]]


def answer(
    keys: Sequence[ts.LeafKey], transcripts: Sequence[ts.LeafTranscript]
) -> ts.ReadLeavesResponse:
    """Return an answer about leaves, with as many of the first ones as it has room for.

    transcripts: in the order of the keys, without those that are not stored
    """
    response, size = ts.ReadLeavesResponse(), 0
    found = {transcript.key.SerializeToString(): transcript for transcript in transcripts}
    for place, key in enumerate(keys):
        transcript = found.get(key.SerializeToString())
        if transcript is None:
            continue
        size += transcript.ByteSize()
        if size > MOST_BYTES and response.transcripts:
            response.unread = len(keys) - place
            break
        response.transcripts.append(transcript)
    return response


def read(connection: Connection, keys: Sequence[ts.LeafKey]) -> list[ts.LeafTranscript]:
    """Return the transcripts of the leaves that are stored.

    A leaf that was refused under the given claim has no scorers. A refusal under an older claim
    means nothing: the new claim may have grown the same leaf, whose event is on its way.
    """
    rows = _rows(connection, {key.tree_id for key in keys})
    transcripts = [
        _transcript(rows, key.tree_id, Leaf(key.leaf.segment, key.leaf.end), key.claim_epoch)
        for key in keys
    ]
    return [transcript for transcript in transcripts if transcript is not None]


def of_trees(
    connection: Connection, trees: Sequence[Row[Any]], scorers: Sequence[str]
) -> list[ts.LeafTranscript] | None:
    """Return all listed leaves of grown trees, from left to right, with those of `scorers` that owe
    a score, and with the head's last scores if one of `scorers` weighs by them.

    Returns None if one of them has no text yet.
    """
    tree_ids = {tree.tree_id for tree in trees}
    rows = _rows(connection, tree_ids)
    head_scores = heads.read(connection, tree_ids) if HEAD_VOTE in scorers else {}
    transcripts: list[ts.LeafTranscript] = []
    paths = order.paths(rows.segments.values())
    for tree in trees:
        listed = [
            leaf
            for (tree_id, leaf), row in rows.leaves.items()
            if tree_id == tree.tree_id and row.listed
        ]
        for leaf in sorted(listed, key=lambda leaf: order.at(paths, leaf.segment, leaf.end)):
            transcript = _transcript(rows, tree.tree_id, leaf, tree.grown_epoch)
            if transcript is None:
                return None
            transcript.ClearField("scorers")
            transcript.scorers.extend(owing(rows, tree, leaf, scorers))
            head = heads.last(rows.segments, head_scores, leaf)
            if head is not None:
                transcript.head = head
            transcripts.append(transcript)
    return transcripts


def _rows(connection: Connection, tree_ids: set[bytes]) -> LeafRows:
    segments: dict[bytes, Row[Any]] = {}
    for chunk in chunks(sorted(tree_ids)):
        segments |= {row.id: row for row in connection.execute(_SEGMENTS, {"keys": chunk})}
    trees = rows_in(connection, schema.trees, "tree_id", tree_ids)
    leaves = rows_in(connection, schema.leaves, "tree_id", tree_ids)
    scores = rows_in(connection, schema.scores, "tree_id", tree_ids)
    refused = rows_in(connection, schema.refused, "tree_id", tree_ids, kind="leaf")
    return LeafRows(
        trees={row.tree_id: row for row in trees},
        segments=segments,
        leaves={(row.tree_id, Leaf(row.segment, row.end)): row for row in leaves},
        scores=frozenset(((row.tree_id, Leaf(row.segment, row.end)), row.scorer) for row in scores),
        refused=frozenset((row.tree_id, Leaf(row.segment, row.end), row.epoch) for row in refused),
    )


def _transcript(
    rows: LeafRows, tree_id: bytes, leaf: Leaf, claim_epoch: int
) -> ts.LeafTranscript | None:
    tree, row = rows.trees.get(tree_id), rows.leaves.get((tree_id, leaf))
    if tree is None:
        return None
    place = tree_pb2.LeafRef(segment=leaf.segment, end=leaf.end)
    key = ts.LeafKey(tree_id=tree_id, leaf=place, claim_epoch=claim_epoch)
    if row is None:
        over = tree.state == DROPPED or (tree_id, leaf, claim_epoch) in rows.refused
        return ts.LeafTranscript(key=key, run_id=tree.run_id) if over else None
    completion = row.completion or join(rows.segments, leaf)
    if completion is None:
        return None
    spec = tree_pb2.TreeSpec.FromString(tree.spec)
    scorers = [name for name in spec.scorers if name not in spec.group_scorers]
    last = rows.segments[leaf.segment]
    return ts.LeafTranscript(
        key=key,
        run_id=tree.run_id,
        completion=completion,
        row_json=spec.row_json,
        messages_json=spec.messages_json,
        scorers=owing(rows, tree, leaf, scorers),
        traceparent=tree.traceparent,
        completion_tokens=last.prefix_sampled + (leaf.end if last.kind in ANSWER else 0),
        finish=last.finish,
        turns=turns.of_path(rows.segments, leaf),
    )


def owing(rows: LeafRows, tree: Row[Any], leaf: Leaf, scorers: Sequence[str]) -> list[str]:
    """Return the scorers that owe a score; none for a tree that is over, which takes no more."""
    if tree.state not in (GROWING, SCORING):
        return []
    return [scorer for _, scorer in reward.owed([(tree.tree_id, leaf)], scorers, rows.scores)]


def join(segments: Mapping[bytes, Row[Any]], leaf: Leaf) -> str | None:
    """Return the path's text after the prompt, or after its last answer of an environment.

    None if the path leaves a segment before its end there.
    """
    texts: list[str] = []
    segment_id, end = leaf.segment, leaf.end
    while segment_id:
        row = segments[segment_id]
        if row.kind == Kind.TOOL:
            break
        if row.kind != Kind.PROMPT:
            if end not in (0, row.length):
                return None
            texts.append(row.text if end else "")
        segment_id, end = row.parent, row.fork
    return "".join(reversed(texts))
