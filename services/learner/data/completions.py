"""Samples of a batch's completions, for loggers that ask for them. Pure.

Prompts and answers alone: a row's own fields stay in the store, and so do tokens that a teacher
wrote, which may be a row's answer.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from banyan.credit.estimate import Credit, Floats
from banyan.loggers.completions import Completion, cut
from banyan.segment import IntTokens, Kind, Origin, Segment
from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.view import TreeView
from banyan.wire.segments import rewards_from_wire
from banyan.wire.weights import weights_of
from services.learner.data import score_metrics

Decode = Callable[[IntTokens], str]
_Path = tuple[Credit, int, int]  # group, index of the tree in it, index of the leaf


@dataclass(frozen=True, slots=True)
class _Scored:
    """Scores of leaves, by the names of metrics, and the rewards that they make, without any KL.

    A segment's id covers its tree's, so that leaves of all trees stand together.
    """

    scores: dict[Leaf, dict[str, float]] = field(default_factory=dict)
    rewards: dict[Leaf, float | None] = field(default_factory=dict)


def drawn(
    credits: Sequence[Credit],
    trees: Mapping[bytes, tree_pb2.Tree],
    *,
    run_id: str,
    step: int,
    count: int,
    decode: Decode | None = None,
) -> list[Completion]:
    """Return `count` paths of a batch's own trees, or all if it has fewer.

    They are drawn evenly, by run and step: a batch that is trained again gives the same.

    trees: stored trees by id; paths of other trees, which are replayed ones, are not drawn
    decode: tokens → text, for paths that leave a segment before its end; None if unknown
    """
    paths = [
        (credit, index, leaf)
        for credit in credits
        for index, view in enumerate(credit.group.trees)
        if view.tree.tree_id in trees and index not in credit.replayed
        for leaf in range(len(view.leaves_L))
    ]
    rng = random.Random(f"{run_id} {step}")
    chosen = rng.sample(paths, min(count, len(paths)))
    scored = _scored(chosen, trees)
    return [_completion(path, scored, step, decode) for path in chosen]


def _scored(paths: Sequence[_Path], trees: Mapping[bytes, tree_pb2.Tree]) -> _Scored:
    """Return the scores and rewards of paths' leaves; each tree's are read once."""
    leaves: dict[bytes, list[Leaf]] = {}
    for credit, index, leaf in paths:
        view = credit.group.trees[index]
        leaves.setdefault(view.tree.tree_id, []).append(view.leaves_L[leaf])
    found = _Scored()
    for tree_id, places in leaves.items():
        tree = trees[tree_id]
        found.scores.update(score_metrics.of_leaves(tree, places))
        scorers, weights = len(tree.spec.scorers), weights_of(tree.spec)
        found.rewards.update(rewards_from_wire(tree.scores, scorers, weights))
    return found


def _completion(path: _Path, scored: _Scored, step: int, decode: Decode | None) -> Completion:
    credit, index, leaf = path
    view = credit.group.trees[index]
    place = view.leaves_L[leaf]
    takes_part = bool(np.isfinite(view.rewards_L[leaf]))
    pieces = view.tree.pieces(place.segment, place.end)
    texts = [_text(segment, end, decode) for segment, end in pieces]
    sampled = [segment.policy_step for segment, end in pieces if _is_sampled(segment) and end]
    return Completion(
        step=step,
        prompt=cut(texts[0]),
        completion=cut("".join(texts[1:])),
        reward=scored.rewards.get(place) if takes_part else None,
        advantage=_advantage(credit, index, leaf),
        scores=scored.scores[place],
        tree_id=view.tree.tree_id.hex(),
        segment=place.segment.hex(),
        end=place.end,
        policy_step=max(sampled, default=0),
    )


def _text(segment: Segment, end: int, decode: Decode | None) -> str:
    """Return the text of the first `end` tokens of a segment."""
    if segment.kind is Kind.FORCED and segment.origin is not Origin.BRANCH:
        return f"[{end} tokens of a teacher are left out]" if end else ""
    if end == len(segment):
        return segment.text
    if decode is None:
        return f"[{end} of {len(segment)} tokens of: {segment.text}]" if end else ""
    return decode(segment.tokens_T[:end])


def _is_sampled(segment: Segment) -> bool:
    return segment.kind is Kind.POLICY


def _advantage(credit: Credit, index: int, leaf: int) -> float | None:
    """Return the mean over the path's own tokens of a node-valued estimator, else the leaf's.

    0 in a group that teaches nothing; None for a path that takes no part.
    """
    advantages = credit.advantages
    if advantages.skip:
        return 0.0
    value = float(advantages.leaf_G_L[index][leaf])
    if advantages.node_G_N is not None and np.isfinite(value):
        value = _mean_of_nodes(credit.group.trees[index], advantages.node_G_N[index], leaf)
    return value if np.isfinite(value) else None


def _mean_of_nodes(view: TreeView, node_N: Floats, leaf: int) -> float:
    own = [i for i in view.path(leaf) if view.nodes[i].trained and len(view.nodes[i])]
    tokens = sum(len(view.nodes[i]) for i in own)
    total = sum(len(view.nodes[i]) * float(node_N[i]) for i in own)
    return total / tokens if tokens else float("nan")
