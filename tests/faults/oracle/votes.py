"""Votes of a finished run's evaluations, counted again from completions and signals."""

import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction
from types import SimpleNamespace

import numpy as np

from banyan import order
from banyan.segment import Kind
from banyan.v1 import tree_pb2
from methods.filter.answers import EXTRACTORS
from tests.faults.oracle.lineage import CLOSED, SCORED, short

Leaf = tuple[bytes, int]
_SCORERS = {"vote": "vote", "head-vote": "head_vote"}  # scorer → beginning of its columns
NO_WEIGHTS = dict.fromkeys(_SCORERS, 0.0)
COLUMNS = [
    f"{name}{end}"
    for name in _SCORERS.values()
    for end in ("s", "_sum", "_correct", "_leaf_sum", "_leaf_correct")
]


def of_row(
    db: sqlite3.Connection, tree: sqlite3.Row, rewards: Mapping[Leaf, float]
) -> dict[str, float]:
    """Return what a closed tree adds to the sums of its label."""
    added: dict[str, float] = {}
    for scorer, name in _SCORERS.items():
        won = [rewards[leaf] for leaf in _winners(db, tree, scorer) if leaf in rewards]
        if won:
            value, of_leaves = math.fsum(won) / len(won), [*rewards.values()]
            added |= {
                f"{name}s": 1,
                f"{name}_sum": value,
                f"{name}_correct": value >= 1,
                f"{name}_leaf_sum": math.fsum(of_leaves) / len(of_leaves),
                f"{name}_leaf_correct": sum(r >= 1 for r in of_leaves) / len(of_leaves),
            }
    return added


def _winners(db: sqlite3.Connection, tree: sqlite3.Row, scorer: str) -> list[Leaf]:
    query = "select segment, end from scores where tree_id = ? and scorer = ? and value = 1"
    return [tuple(row) for row in db.execute(query, (tree["tree_id"], scorer))]


def votes(db: sqlite3.Connection, run_id: str) -> Iterator[str]:
    """Yield rows whose stored winners are not those of a count from the rows alone."""
    query = "select recipe_json from runs where run_id = ?"
    recipe = json.loads(db.execute(query, (run_id,)).fetchone()[0])
    wanted = recipe.get("eval", {}).get("votes")
    labels = "select * from trees where run_id = ? and state = ? and label like '%-voted'"
    for tree in db.execute(labels, (run_id, CLOSED)):
        for scorer in json.loads(tree["scorers"]):
            if scorer in _SCORERS and _is_whole(db, tree, scorer):
                expected = _counted(db, tree, scorer, wanted)
                if sorted(_winners(db, tree, scorer)) != sorted(expected):
                    yield f"tree {short(tree['tree_id'])} has other winners by {scorer}"


def _is_whole(db: sqlite3.Connection, tree: sqlite3.Row, scorer: str) -> bool:
    """Return False if a score of the vote came from the store's deadline: audited elsewhere."""
    query = "select count(*) from scores where tree_id = ? and scorer = ? and state != ?"
    return not db.execute(query, (tree["tree_id"], scorer, SCORED)).fetchone()[0]


def _counted(
    db: sqlite3.Connection, tree: sqlite3.Row, scorer: str, wanted: Mapping[str, str | None]
) -> list[Leaf]:
    """Return the leaves with the answer that wins.

    A run of these tests names the form of its answers, or has those of `number`.
    """
    segments = {
        row["id"]: row
        for row in db.execute("select * from segments where tree_id = ?", (tree["tree_id"],))
    }
    places = order.paths(SimpleNamespace(**row) for row in segments.values())
    query = "select segment, end from leaves where tree_id = ? and listed"
    leaves: list[Leaf] = [tuple(row) for row in db.execute(query, (tree["tree_id"],))]
    leaves.sort(key=lambda leaf: order.at(places, *leaf))
    extract = EXTRACTORS[wanted["extract"] or "number"]
    answers = [extract(_text(segments, leaf), wanted["take"] or "only") for leaf in leaves]
    heads = [_head(segments, leaf) if scorer == "head-vote" else 1.0 for leaf in leaves]
    if None in heads:
        return []
    mute = not any(answer is not None for answer in answers)
    sums: dict[str | None, Fraction] = defaultdict(Fraction)
    for answer, head in zip(answers, heads, strict=True):
        if mute or answer is not None:
            sums[answer] += Fraction(head)
    best = next(answer for answer in sums if sums[answer] == max(sums.values()))
    return [leaf for leaf, answer in zip(leaves, answers, strict=True) if answer == best]


def _text(segments: Mapping[bytes, sqlite3.Row], leaf: Leaf) -> str:
    segment_id, texts = leaf[0], list[str]()
    while segments[segment_id]["kind"] != Kind.PROMPT:
        texts.append(segments[segment_id]["text"])
        segment_id = segments[segment_id]["parent"]
    return "".join(reversed(texts))


def _head(segments: Mapping[bytes, sqlite3.Row], leaf: Leaf) -> float | None:
    segment_id, end = leaf
    while segment_id:
        row = segments[segment_id]
        head_T = np.frombuffer(tree_pb2.TokenSignals.FromString(row["signals"]).head, "<f2")
        if end and len(head_T):
            return float(head_T[end - 1])
        segment_id, end = row["parent"], row["fork"]
    return None
