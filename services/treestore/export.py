"""Trees as JSON lines, the format of `banyan trees export`: ids in hex, one tree a line."""

import json
from typing import Any

import numpy as np

from banyan.v1 import tree_pb2
from banyan.wire import rewards_from_wire


def line(tree: tree_pb2.Tree) -> str:
    """One tree as JSON, without a line end."""
    rewards: dict[bytes, tuple[int, float | None]] = {}
    for leaf, reward in rewards_from_wire(tree.scores).items():  # where several leaves end in a segment, its last one counts
        if leaf.segment not in rewards or rewards[leaf.segment][0] < leaf.end:
            rewards[leaf.segment] = (leaf.end, reward)
    spec = tree.spec
    return json.dumps(
        {
            "tree_id": spec.tree_id.hex(),
            "run_id": spec.run_id,
            "group_id": spec.group_id,
            "task_id": spec.row_digest.hex(),
            "purpose": tree_pb2.TreePurpose.Name(spec.purpose).removeprefix("TREE_PURPOSE_"),
            "label": spec.label,
            "state": tree_pb2.TreeState.Name(tree.state).removeprefix("TREE_STATE_"),
            "nodes": [_node(segment, rewards.get(segment.id, (0, None))[1]) for segment in tree.segments],
        },
        ensure_ascii=False,
    )


def _node(segment: tree_pb2.Segment, reward: float | None) -> dict[str, Any]:
    sampled = segment.kind == tree_pb2.SEGMENT_KIND_POLICY
    return {
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
        "text": segment.text,
    }
