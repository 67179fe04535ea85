"""Scores of a leaf in words: value and parts of each scorer, of the run and after it."""

from collections.abc import Mapping

from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.wire.segments import leaf_from_wire
from banyan.wire.weights import weights_of

_MOST = 8  # parts that are shown of a score


def of_tree(tree: tree_pb2.Tree) -> dict[Leaf, list[str]]:
    """Return the run's scores of each leaf in words.

    One that is the reward and nothing else is left out.
    """
    weights, words = weights_of(tree.spec), dict[Leaf, list[str]]()
    for scored in tree.scores:
        is_scored = scored.score.state == tree_pb2.SCORE_STATE_SCORED
        if len(tree.spec.scorers) == 1 and is_scored and not scored.score.parts:
            continue
        weight = f" × {weights[scored.scorer]:g}" if scored.scorer in weights else ""
        words.setdefault(leaf_from_wire(scored.leaf), []).append(
            f"{scored.scorer} {_value(scored.score)}{weight}{_parts(scored.score.parts)}"
        )
    return words


def later(tree: tree_pb2.Tree) -> dict[Leaf, list[str]]:
    """Return the scores in words that each leaf was given after the run."""
    words = dict[Leaf, list[str]]()
    for rescore in tree.rescores:
        scored = rescore.scored
        settings = "" if rescore.settings_json == "{}" else f" {rescore.settings_json}"
        words.setdefault(leaf_from_wire(scored.leaf), []).append(
            f"again by {scored.scorer} {scored.scorer_version}{settings}:"
            f" {_value(scored.score)}{_parts(scored.score.parts)}"
        )
    return words


def _value(score: tree_pb2.Score) -> str:
    if score.state == tree_pb2.SCORE_STATE_SCORED:
        return f"{score.value:g}"
    return f"unscorable ({score.reason:.500})"


def _parts(parts: Mapping[str, float]) -> str:
    named = [f"{name} {parts[name]:g}" for name in sorted(parts)]
    more = [f"{len(named) - _MOST} more"] if len(named) > _MOST else []
    return f" ({', '.join([*named[:_MOST], *more])})" if named else ""
