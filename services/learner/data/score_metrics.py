"""Metrics of a batch's scores: mean and deviation of each scorer's values and of their parts. Pure.

Names are bounded: `score/SCORER` and `part/SCORER/PART`, the same behind `score_std/` and
`part_std/`, and `part_share/SCORER/PART`, with at most `MOST_PARTS` parts of all scorers together;
`parts_left_out` counts those beyond. No name lies below another one, as loggers make folders of
them.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from banyan.tree import Leaf
from banyan.v1 import tree_pb2

MOST_PARTS = 64
LEFT_OUT = "parts_left_out"
_LONGEST = 64  # characters of a scorer's or a part's name
_Key = tuple[str, str]  # scorer, and part; the part of the value itself is empty


def of_trees(trees: Iterable[tree_pb2.Tree]) -> dict[str, float]:
    """Return the metrics of the scores of trees' leaves, without those of dropped trees.

    Unscorable leaves have none. A part counts over the scores that have it; their share among all
    scores of the scorer is a metric where it is below 1.
    """
    values: dict[_Key, list[float]] = {}
    for tree in trees:
        if tree.state != tree_pb2.TREE_STATE_DROPPED:
            _collect(tree, values)
    metrics: dict[str, float] = {}
    kept = _kept(sorted(values))
    if len(kept) < len(values):
        metrics[LEFT_OUT] = float(len(values) - len(kept))
    for scorer, part in kept:
        numbers, name = values[scorer, part], _name(scorer, part)
        kind = _kind(part)
        if f"{kind}/{name}" in metrics:
            continue  # two names that are written alike: the first one counts
        metrics[f"{kind}/{name}"] = float(np.mean(numbers))
        metrics[f"{kind}_std/{name}"] = float(np.std(numbers))
        share = len(numbers) / len(values[scorer, ""])
        if share < 1.0:
            metrics[f"part_share/{name}"] = share
    return metrics


def of_leaves(tree: tree_pb2.Tree, leaves: Collection[Leaf]) -> dict[Leaf, dict[str, float]]:
    """Return the values of leaves' scores and of their parts, by the names of the metrics."""
    values: dict[Leaf, dict[_Key, float]] = {leaf: {} for leaf in leaves}
    for scored in tree.scores:
        found = values.get(Leaf(scored.leaf.segment, scored.leaf.end))
        if found is not None and scored.score.state == tree_pb2.SCORE_STATE_SCORED:
            found[scored.scorer, ""] = scored.score.value
            found |= {(scored.scorer, part): v for part, v in scored.score.parts.items() if part}
    return {leaf: _named(found) for leaf, found in values.items()}


def _named(values: Mapping[_Key, float]) -> dict[str, float]:
    named: dict[str, float] = {}
    for scorer, part in _kept(sorted(values)):
        named.setdefault(f"{_kind(part)}/{_name(scorer, part)}", values[scorer, part])
    return named


def _collect(tree: tree_pb2.Tree, values: dict[_Key, list[float]]) -> None:
    """Add the scores of a tree's leaves; those of places inside paths are of other texts."""
    leaves = {(leaf.segment, leaf.end) for leaf in tree.leaves}
    for scored in tree.scores:
        place, score = (scored.leaf.segment, scored.leaf.end), scored.score
        if place in leaves and score.state == tree_pb2.SCORE_STATE_SCORED:
            values.setdefault((scored.scorer, ""), []).append(score.value)
            for part, value in score.parts.items():
                if part:
                    values.setdefault((scored.scorer, part), []).append(value)


def _kept(keys: Sequence[_Key]) -> list[_Key]:
    """Return the scorers with as many of their parts as are measured, in order of name."""
    parts = [key for key in keys if key[1]][:MOST_PARTS]
    return sorted([*(key for key in keys if not key[1]), *parts])


def _kind(part: str) -> str:
    return "part" if part else "score"


def _name(scorer: str, part: str) -> str:
    """Return a name that every logger takes: letters, digits, _ . and -, others as _."""
    names = [scorer, part] if part else [scorer]
    return "/".join(re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:_LONGEST] for name in names)
