"""Trees as JSON lines, the format of `banyan trees export`: ids in hex, one tree a line."""

import json
from typing import Any

import numpy as np

from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.wire.segments import leaf_from_wire, own_rewards_from_wire, rewards_from_wire

Places = dict[bytes, list[dict[str, Any]]]  # the places in each segment, with their values


def line(tree: tree_pb2.Tree) -> str:
    """Return a tree as JSON, without a line end.

    `leaves` of a node are the paths that end in it, first end first, with the parts of their
    scores; its `reward` is that of the last of them. `own` has the rewards of places in it from
    which paths continue.
    """
    spec, rewards = tree.spec, rewards_from_wire(tree.scores, len(tree.spec.scorers))
    ends, own = _ends(tree, rewards), _own(tree)
    leaves = sorted(leaf_from_wire(leaf) for leaf in tree.leaves)
    last = {leaf.segment: rewards.get(leaf) for leaf in leaves}
    values = {
        "tree_id": spec.tree_id.hex(),
        "run_id": spec.run_id,
        "group_id": spec.group_id,
        "task_id": spec.row_digest.hex(),
        "purpose": tree_pb2.TreePurpose.Name(spec.purpose).removeprefix("TREE_PURPOSE_"),
        "label": spec.label,
        "state": tree_pb2.TreeState.Name(tree.state).removeprefix("TREE_STATE_"),
        "nodes": [_node(segment, last.get(segment.id), ends, own) for segment in tree.segments],
    }
    return json.dumps(values, ensure_ascii=False)


def _ends(tree: tree_pb2.Tree, rewards: dict[Leaf, float | None]) -> Places:
    """Return the leaves of each segment."""
    parts: dict[Leaf, dict[str, float]] = {}
    for scored in sorted(tree.scores, key=lambda s: (s.scorer, s.scorer_version)):
        parts.setdefault(leaf_from_wire(scored.leaf), {}).update(scored.score.parts)
    ends: Places = {}
    for leaf in sorted({leaf_from_wire(leaf) for leaf in tree.leaves}):
        end: dict[str, Any] = {"end": leaf.end, "reward": rewards.get(leaf)}
        if parts.get(leaf):
            end["parts"] = parts[leaf]
        ends.setdefault(leaf.segment, []).append(end)
    return ends


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
