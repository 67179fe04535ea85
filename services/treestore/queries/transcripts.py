"""What scorers see of a leaf: its text, its row, and who still owes a score. Only of leaves that the store accepted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from banyan import order, reward
from banyan.segment import Kind
from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.treestore.storage import schema
from services.treestore.unit_of_work.load import chunks, rows_in
from services.treestore.unit_of_work.rows import ANSWER, DROPPED, GROWING, SCORING

Key = tuple[bytes, Leaf]
_NAMES = (
    "id",
    "tree_id",
    "parent",
    "fork",
    "ordinal",
    "kind",
    "length",
    "prefix_sampled",
    "text",
    "finish",
)
_HEADS = select(*(schema.segments.c[name] for name in _NAMES)).where(
    schema.segments.c.tree_id.in_(bindparam("keys", expanding=True))
)


@dataclass(frozen=True, slots=True)
class LeafRows:
    """Rows of the trees that were asked for."""

    trees: Mapping[bytes, Row[Any]]
    segments: Mapping[bytes, Row[Any]]
    leaves: Mapping[Key, Row[Any]]
    given: frozenset[tuple[Key, str]]
    refused: frozenset[tuple[bytes, Leaf, int]]  # with the epoch of the claim


def read(connection: Connection, keys: Sequence[ts.LeafKey]) -> list[ts.LeafTranscript]:
    """Transcripts of the leaves that are there. One that was refused under the claim asked for has no scorer to ask.

    A refusal under an older claim says nothing: the new claim may have grown the same leaf, whose event is on its way.
    """
    facts = _facts(connection, {key.tree_id for key in keys})
    found = [
        _transcript(facts, key.tree_id, Leaf(key.leaf.segment, key.leaf.end), key.claim_epoch)
        for key in keys
    ]
    return [transcript for transcript in found if transcript is not None]


def of_trees(
    connection: Connection, trees: Sequence[Row[Any]], scorers: Sequence[str]
) -> list[ts.LeafTranscript] | None:
    """All leaves that grown trees list, from left to right, with those of `scorers` that owe a score.

    None if one of them has no text yet.
    """
    facts = _facts(connection, {tree.tree_id for tree in trees})
    found: list[ts.LeafTranscript] = []
    paths = order.paths(facts.segments.values())
    for tree in trees:
        listed = [
            leaf
            for (tree_id, leaf), row in facts.leaves.items()
            if tree_id == tree.tree_id and row.listed
        ]
        for leaf in sorted(listed, key=lambda leaf: order.at(paths, leaf.segment, leaf.end)):
            transcript = _transcript(facts, tree.tree_id, leaf, tree.grown_epoch)
            if transcript is None:
                return None
            transcript.ClearField("scorers")
            transcript.scorers.extend(owing(facts, tree, leaf, scorers))
            found.append(transcript)
    return found


def _facts(connection: Connection, tree_ids: set[bytes]) -> LeafRows:
    leaves, scores, refused = schema.leaves, schema.scores, schema.refused
    heads: dict[bytes, Row[Any]] = {}
    for chunk in chunks(sorted(tree_ids)):
        heads |= {row.id: row for row in connection.execute(_HEADS, {"keys": chunk})}
    return LeafRows(
        trees={row.tree_id: row for row in rows_in(connection, schema.trees, "tree_id", tree_ids)},
        segments=heads,
        leaves={
            (row.tree_id, Leaf(row.segment, row.end)): row
            for row in rows_in(connection, leaves, "tree_id", tree_ids)
        },
        given=frozenset(
            ((row.tree_id, Leaf(row.segment, row.end)), row.scorer)
            for row in rows_in(connection, scores, "tree_id", tree_ids)
        ),
        refused=frozenset(
            (row.tree_id, Leaf(row.segment, row.end), row.epoch)
            for row in rows_in(connection, refused, "tree_id", tree_ids, kind="leaf")
        ),
    )


def _transcript(
    facts: LeafRows, tree_id: bytes, leaf: Leaf, claim_epoch: int
) -> ts.LeafTranscript | None:
    tree, row = facts.trees.get(tree_id), facts.leaves.get((tree_id, leaf))
    if tree is None:
        return None
    place = tree_pb2.LeafRef(segment=leaf.segment, end=leaf.end)
    key = ts.LeafKey(tree_id=tree_id, leaf=place, claim_epoch=claim_epoch)
    if row is None:
        over = tree.state == DROPPED or (tree_id, leaf, claim_epoch) in facts.refused
        return ts.LeafTranscript(key=key, run_id=tree.run_id) if over else None
    completion = row.completion or join(facts.segments, leaf)
    if completion is None:
        return None
    spec = tree_pb2.TreeSpec.FromString(tree.spec)
    last = facts.segments[leaf.segment]
    return ts.LeafTranscript(
        key=key,
        run_id=tree.run_id,
        completion=completion,
        row_json=spec.row_json,
        messages_json=spec.messages_json,
        scorers=owing(
            facts, tree, leaf, [name for name in spec.scorers if name not in spec.group_scorers]
        ),
        traceparent=tree.traceparent,
        completion_tokens=last.prefix_sampled + (leaf.end if last.kind in ANSWER else 0),
        finish=last.finish,
    )


def owing(facts: LeafRows, tree: Row[Any], leaf: Leaf, scorers: Sequence[str]) -> list[str]:
    """Scorers that owe a score; none for a tree that is over: it takes no more."""
    if tree.state not in (GROWING, SCORING):
        return []
    return [scorer for _, scorer in reward.owed([(tree.tree_id, leaf)], scorers, facts.given)]


def join(segments: Mapping[bytes, Row[Any]], leaf: Leaf) -> str | None:
    """The path's text after the prompt, from whole segments; None if it leaves one of them before its end."""
    texts: list[str] = []
    at, end = leaf.segment, leaf.end
    while at:
        row = segments[at]
        if row.kind != Kind.PROMPT:
            if end not in (0, row.length):
                return None
            texts.append(row.text if end else "")
        at, end = row.parent, row.fork
    return "".join(reversed(texts))
