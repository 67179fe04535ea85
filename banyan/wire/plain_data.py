"""Messages as plain data for tables and JSON."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts

OVER = (rs.RUN_STATE_SUCCEEDED, rs.RUN_STATE_FAILED, rs.RUN_STATE_CANCELLED)


def run(message: rs.Run) -> dict[str, Any]:
    """Return a run in one line."""
    return {
        "run_id": message.run_id,
        "state": run_state(message.state),
        "step": message.step,
        "cause": message.cause or None,
        "created": when(message.created_unix_ms),
        "ended": when(message.ended_unix_ms),
        "folder": message.folder,
    }


def run_state(state: int) -> str:
    """Return the name of a state: SUCCEEDED instead of RUN_STATE_SUCCEEDED."""
    return rs.RunState.Name(rs.RunState.ValueType(state)).removeprefix("RUN_STATE_")


def when(unix_ms: int) -> str | None:
    """Return a time in UTC in ISO form; None for 0."""
    import datetime

    if not unix_ms:
        return None
    return datetime.datetime.fromtimestamp(unix_ms / 1000, datetime.UTC).isoformat(
        timespec="seconds"
    )


def wilson(correct: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson 95 % interval of a share (Wilson 1927); (0, 1) when n is 0."""
    if n == 0:
        return 0.0, 1.0
    p = correct / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def evaluation(message: rs.EvalProgress) -> dict[str, Any]:
    """Return an evaluation with its accuracy and interval."""
    low, high = wilson(message.correct, message.scored)
    return {
        "label": message.label,
        "rows": message.groups,
        "done": message.done,
        "n": message.scored,
        "unscorable": message.unscorable,
        "accuracy": message.correct / message.scored if message.scored else None,
        "mean_reward": message.reward_sum / message.scored if message.scored else None,
        "wilson_95": [low, high] if message.scored else None,
        "votes": votes(message.votes) if message.HasField("votes") else None,
        "head_votes": votes(message.head_votes) if message.HasField("head_votes") else None,
    }


def votes(message: rs.Votes) -> dict[str, Any]:
    """Return the votes of an evaluation's rows, beside the means of these rows' leaves."""
    rows = message.rows
    return {
        "rows": rows,
        "accuracy": message.correct / rows,
        "mean_reward": message.value_sum / rows,
        "wilson_95": list(wilson(message.correct, rows)),
        "leaf_accuracy": message.leaf_correct_sum / rows,
        "leaf_mean_reward": message.leaf_value_sum / rows,
    }


def graded(evaluations: Iterable[rs.EvalProgress]) -> bool:
    """Return whether rewards lie between right and wrong, so that accuracy has no meaning.

    evaluations: all that stand together. Graded rewards may add up to the number of right answers
        in one of them by chance, and its result must not have another unit than the others.
    """
    return any(abs(message.reward_sum - message.correct) > 1e-9 for message in evaluations)


def numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return numbers by name; None, JSON's null, for one that is not finite."""
    return {name: values[name] if math.isfinite(values[name]) else None for name in sorted(values)}


def metrics(policies: Iterable[rs.StoredPolicy]) -> list[dict[str, Any]]:
    """Return the metrics of each step, in order of steps; None for a number that is not finite.

    Duplicates of a step are dropped.
    """
    steps: dict[int, dict[str, Any]] = {}
    for stored in policies:
        measured = stored.published.metrics
        if measured:  # empty for the base model and repetitions by a restarted learner
            steps.setdefault(stored.published.policy.step, numbers(measured))
    return [{"step": step} | steps[step] for step in sorted(steps)]


def progress(message: rs.ReadProgressResponse) -> dict[str, Any]:
    """Return the progress of a run."""
    groups, samples = message.groups, message.samples
    return {
        "step": message.step if message.HasField("step") else None,
        "batches": message.batches,
        "groups": {
            name: getattr(groups, name)
            for name in ("opened", "open", "closed", "consumed", "dropped")
        },
        "leaves": samples.leaves,
        "unscorable": samples.unscorable,
        "mean_reward": samples.reward_sum / samples.scored if samples.scored else None,
        "sampled_tokens": samples.sampled_tokens,
        "saved_tokens": saved_tokens(samples),
        "unused_tokens": unused_tokens(samples),
        "evaluations": [evaluation(e) for e in message.evals],
        "set_aside": [
            {"batch": batch.ordinal, "cause": batch.cause} for batch in message.set_aside
        ],
    }


def allocation(message: rs.GroupAllocation) -> dict[str, Any]:
    """Return the curriculum's decision for a training group; None where the recipe holds."""
    return {
        "group": message.ordinal,
        "row": message.row,
        "why": message.why,
        "batches": message.batches,  # basis of the decision
        "trees": message.trees or None,
        "settings": json.loads(message.settings_json) if message.settings_json else None,
        "max_new_tokens": message.max_new_tokens or None,
        "messages": json.loads(message.messages_json) if message.messages_json else None,
    }


def present(members: Iterable[rs.Member]) -> int:
    """Return the number of present members: those with a recent heartbeat that have not left."""
    return sum(m.present for m in members)


def member(message: rs.Member) -> dict[str, Any]:
    """Return a rollout node."""
    return {
        "node": message.node_id,
        "host": message.host,
        "joined": message.joined,
        "present": message.present,
        "seen": when(message.seen_unix_ms),
        "trees": message.trees,
        "policy_step": message.policy_step if message.HasField("policy_step") else None,
        "delivered": when(message.delivered_unix_ms),
    }


def saved_tokens(samples: rs.SampleCounts) -> int:
    """Return the number of tokens that sharing saved: never negative.

    These are answer tokens and prompt tokens of leaves' paths, minus the same with each token
    counted once. Sampled tokens on no path take nothing from it: they are `unused_tokens`. A store
    from before that was told apart may have counted prompts of trees without a leaf.
    """
    answers = samples.path_tokens - samples.unique_tokens
    prompts = samples.prompt_path_tokens - samples.prompt_tokens
    return int(answers + max(0, prompts))


def unused_tokens(samples: rs.SampleCounts) -> int:
    """Return the number of sampled tokens that are on no leaf's path.

    They belong to trees that still grow or never grew to their end, to branches that were cut, or
    come after a leaf's end.
    """
    return int(samples.sampled_tokens - samples.used_tokens)


def tree_summary(message: ts.TreeSummary) -> dict[str, Any]:
    """Return a tree in one line."""
    return {
        "tree_id": message.tree_id.hex(),
        "run_id": message.run_id,
        "group_id": message.group_id,
        "state": tree_pb2.TreeState.Name(message.state).removeprefix("TREE_STATE_"),
        "reason": message.reason or None,
        "leaves": message.leaves,
        "segments": message.segments,
        "sampled_tokens": message.sampled_tokens,
        "mean_reward": message.mean_reward if message.HasField("mean_reward") else None,
        "policy_step": message.policy_step,
        "label": message.label or None,
    }


def segment(message: tree_pb2.Segment) -> dict[str, Any]:
    """Return a segment without its numbers."""
    return {
        "id": message.id.hex(),
        "parent": message.parent.hex() or None,
        "kind": tree_pb2.SegmentKind.Name(message.kind).removeprefix("SEGMENT_KIND_"),
        "fork": message.fork,
        "ordinal": message.ordinal,
        "tokens": len(message.tokens) // 4,
        "finish": tree_pb2.SegmentFinish.Name(message.finish).removeprefix("SEGMENT_FINISH_"),
        "policy": policy(message.policy),
        "text": message.text,
    }


def policy(message: tree_pb2.PolicyRef) -> dict[str, Any] | None:
    """Return a policy version; None if no policy made the segment."""
    if not message.digest:
        return None
    return {"epoch": message.learner_epoch, "step": message.step, "digest": message.digest.hex()}


def policy_words(version: dict[str, Any] | None) -> str:
    """Return a policy version as people read it."""
    return (
        "-"
        if version is None
        else f"step {version['step']} (epoch {version['epoch']}, {version['digest'][:12]})"
    )


def scored(message: tree_pb2.ScoredLeaf) -> dict[str, Any]:
    """Return a score."""
    ok = message.score.state == tree_pb2.SCORE_STATE_SCORED
    return {
        "segment": message.leaf.segment.hex(),
        "end": message.leaf.end,
        "scorer": message.scorer,
        "version": message.scorer_version,
        "state": "SCORED" if ok else "UNSCORABLE",
        "value": message.score.value if ok else None,
        "parts": dict(message.score.parts),
        "reason": message.score.reason or None,
    }


def plan(record: tree_pb2.PlanRecord) -> dict[str, Any]:
    """Return an executed plan: its cause and its new parts."""
    return {
        "claim_epoch": record.claim_epoch,
        "number": record.number,
        "view": record.view_digest.hex(),
        "segments": [segment.hex() for segment in record.segments],
        "expansions": [
            [p.branch.parent.hex(), p.branch.fork, p.branch.ordinal, p.sampling.max_new_tokens]
            for p in record.expansions
        ],
        "leaves": [[p.leaf.segment.hex(), p.leaf.end, p.reason] for p in record.leaves],
        "prunes": [
            [p.branch.parent.hex(), p.branch.fork, p.branch.ordinal, p.end] for p in record.prunes
        ],
        "done": record.done,
        "more": record.more,
        "full": record.full,
    }
