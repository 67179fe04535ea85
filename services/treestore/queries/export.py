"""Trees as JSON lines, the format of `banyan trees export`: ids in hex, one tree a line."""

import json
from typing import Any

import numpy as np

from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.wire.segments import leaf_from_wire, own_rewards_from_wire, rewards_from_wire

Places = dict[bytes, list[dict[str, Any]]]  # segment → what is said of places in it


def line(tree: tree_pb2.Tree) -> str:
    """One tree as JSON, without a line end. A node's `leaves` are the paths that end in it, first end first, with the parts
    of their scores; its `reward` is that of the last of them. `own`: rewards of places in it that paths go on from."""
    spec, rewards = tree.spec, rewards_from_wire(tree.scores, len(tree.spec.scorers))
    ends, own = _ends(tree, rewards), _own(tree)
    last = {
        leaf.segment: rewards.get(leaf)
        for leaf in sorted(leaf_from_wire(leaf) for leaf in tree.leaves)
    }
    return json.dumps(
        {
            "tree_id": spec.tree_id.hex(),
            "run_id": spec.run_id,
            "group_id": spec.group_id,
            "task_id": spec.row_digest.hex(),
            "purpose": tree_pb2.TreePurpose.Name(spec.purpose).removeprefix("TREE_PURPOSE_"),
            "label": spec.label,
            "state": tree_pb2.TreeState.Name(tree.state).removeprefix("TREE_STATE_"),
            "nodes": [_node(segment, last.get(segment.id), ends, own) for segment in tree.segments],
        },
        ensure_ascii=False,
    )


def _ends(tree: tree_pb2.Tree, rewards: dict[Leaf, float | None]) -> Places:
    """The leaves of each segment."""
    parts: dict[Leaf, dict[str, float]] = {}
    for scored in sorted(tree.scores, key=lambda s: (s.scorer, s.scorer_version)):
        parts.setdefault(leaf_from_wire(scored.leaf), {}).update(scored.score.parts)
    found: Places = {}
    for leaf in sorted({leaf_from_wire(leaf) for leaf in tree.leaves}):
        said = {"end": leaf.end, "reward": rewards.get(leaf)}
        found.setdefault(leaf.segment, []).append(
            said | ({"parts": parts[leaf]} if parts.get(leaf) else {})
        )
    return found


def _own(tree: tree_pb2.Tree) -> Places:
    """Rewards of places inside paths, by segment; null where one could not be scored."""
    found: Places = {}
    for place, value in sorted(own_rewards_from_wire(tree).items()):
        found.setdefault(place.segment, []).append({"end": place.end, "reward": value})
    return found


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
    return node | (
        {"entropies": np.frombuffer(segment.entropies, "<f2").tolist()} if segment.entropies else {}
    )
