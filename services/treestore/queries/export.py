"""Trees as JSON lines, the format of `banyan trees export`: ids in hex, one tree a line."""

import json
from typing import Any

import numpy as np

from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.wire.segments import leaf_from_wire, own_rewards_from_wire, rewards_from_wire
from banyan.wire.weights import weights_of

Places = dict[bytes, list[dict[str, Any]]]  # the places in each segment, with their values


def line(tree: tree_pb2.Tree) -> str:
    """Return a tree as JSON, without a line end.

    `leaves` of a node are the paths that end in it, first end first, with the score of each scorer
    and the parts of all of them together; `rescores` are those given after the run's own. Its
    `reward` is that of the last of them; `weights` has the scorers' weights, unless they are equal.
    `own` has the rewards of places in it from
    which paths continue.
    """
    spec = tree.spec
    weights = weights_of(spec)
    rewards = rewards_from_wire(tree.scores, len(spec.scorers), weights)
    ends, own = _ends(tree, rewards), _own(tree)
    leaves = sorted(leaf_from_wire(leaf) for leaf in tree.leaves)
    last = {leaf.segment: rewards.get(leaf) for leaf in leaves}
    values: dict[str, Any] = {
        "tree_id": spec.tree_id.hex(),
        "run_id": spec.run_id,
        "group_id": spec.group_id,
        "task_id": spec.row_digest.hex(),
        "purpose": tree_pb2.TreePurpose.Name(spec.purpose).removeprefix("TREE_PURPOSE_"),
        "label": spec.label,
        "state": tree_pb2.TreeState.Name(tree.state).removeprefix("TREE_STATE_"),
        "nodes": [_node(segment, last.get(segment.id), ends, own) for segment in tree.segments],
    }
    if weights:
        values["weights"] = dict(weights)
    return json.dumps(values, ensure_ascii=False)


def _ends(tree: tree_pb2.Tree, rewards: dict[Leaf, float | None]) -> Places:
    """Return the leaves of each segment."""
    parts: dict[Leaf, dict[str, float]] = {}
    for scored in sorted(tree.scores, key=lambda s: (s.scorer, s.scorer_version)):
        parts.setdefault(leaf_from_wire(scored.leaf), {}).update(scored.score.parts)
    scores, rescores = _scores(tree), _rescores(tree)
    ends: Places = {}
    for leaf in sorted({leaf_from_wire(leaf) for leaf in tree.leaves}):
        end: dict[str, Any] = {"end": leaf.end, "reward": rewards.get(leaf)}
        if parts.get(leaf):
            end["parts"] = parts[leaf]
        if leaf in scores:
            end["scores"] = scores[leaf]
        if leaf in rescores:
            end["rescores"] = rescores[leaf]
        ends.setdefault(leaf.segment, []).append(end)
    return ends


def _scores(tree: tree_pb2.Tree) -> dict[Leaf, dict[str, Any]]:
    """Return the scores of each leaf by scorer."""
    scores: dict[Leaf, dict[str, Any]] = {}
    for scored in tree.scores:
        scores.setdefault(leaf_from_wire(scored.leaf), {})[scored.scorer] = _score(scored)
    return scores


def _rescores(tree: tree_pb2.Tree) -> dict[Leaf, list[dict[str, Any]]]:
    """Return the scores of each leaf that came after the run's own, in order of arrival."""
    scores: dict[Leaf, list[dict[str, Any]]] = {}
    for rescore in tree.rescores:
        of = {"scorer": rescore.scored.scorer, "settings": json.loads(rescore.settings_json)}
        scores.setdefault(leaf_from_wire(rescore.scored.leaf), []).append(
            of | _score(rescore.scored)
        )
    return scores


def _score(scored: tree_pb2.ScoredLeaf) -> dict[str, Any]:
    """Return the value of a score, null for unscorable, with its version, parts and reason."""
    score = scored.score
    ok = score.state == tree_pb2.SCORE_STATE_SCORED
    shown: dict[str, Any] = {
        "value": score.value if ok else None,
        "version": scored.scorer_version,
    }
    if score.parts:
        shown["parts"] = {name: score.parts[name] for name in sorted(score.parts)}
    return shown if ok else shown | {"reason": score.reason}


def _own(tree: tree_pb2.Tree) -> Places:
    """Return the rewards of places inside paths, by segment; null where a place could not be
    scored.
    """
    own: Places = {}
    for place, value in sorted(own_rewards_from_wire(tree).items()):
        own.setdefault(place.segment, []).append({"end": place.end, "reward": value})
    return own


def _node(
    segment: tree_pb2.Segment, reward: float | None, ends: Places, own: Places
) -> dict[str, Any]:
    sampled = segment.kind == tree_pb2.SEGMENT_KIND_POLICY
    node = {
        "id": segment.id.hex(),
        "parent": segment.parent.hex() or None,
        "fork": segment.fork,
        "ordinal": segment.ordinal,
        "kind": tree_pb2.SegmentKind.Name(segment.kind).removeprefix("SEGMENT_KIND_"),
        "tokens": np.frombuffer(segment.tokens, "<i4").tolist(),
        "logprobs": np.frombuffer(segment.logprobs, "<f4").tolist(),
        "policy_version": segment.policy.step if sampled else None,
        "finish": tree_pb2.SegmentFinish.Name(segment.finish).removeprefix("SEGMENT_FINISH_"),
        "reward": reward,
        "leaves": ends.get(segment.id, []),
        "text": segment.text,
    }
    if segment.origin:
        node["origin"] = tree_pb2.SegmentOrigin.Name(segment.origin).removeprefix("SEGMENT_ORIGIN_")
    if segment.id in own:
        node["own"] = own[segment.id]
    if segment.entropies:
        node["entropies"] = np.frombuffer(segment.entropies, "<f2").tolist()
    return node
