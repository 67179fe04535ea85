"""Types of the documents of trees and segments, for the OpenAPI document. Pure."""

from collections.abc import Mapping

from banyan.segment import Finish
from banyan.v1 import tree_pb2
from services.gateway.page.documents import trees
from services.gateway.page.http.json_types import (
    Schema,
    count,
    digits,
    each,
    flag,
    members,
    moment,
    named,
    nullable,
    number,
    ref,
    text,
    whole,
)

_KINDS = ("CONTEXT", "POLICY", "FORCED", "TOOL")
_FINISHES = [finish.name for finish in Finish]
_TREE_STATES = [trees.state_name(state) for state in tree_pb2.TreeState.values()]
_PURPOSES = [trees.purpose_name(purpose) for purpose in tree_pb2.TreePurpose.values()]
_SCORE_STATES = [trees.score_state(state) for state in tree_pb2.ScoreState.values()]
_TREE_SUMMARY = members(
    {
        "tree_id": digits(),
        "run_id": text(),
        "state": text(words=_TREE_STATES),
        "reason": nullable(text()),
        "purpose": text(words=_PURPOSES),
        "label": nullable(text()),
        "policy_step": nullable(count("null before its first sampled segment")),
        "leaves": count(),
        "segments": count(),
        "sampled_tokens": count(),
        "mean_reward": number(),
        "opened": moment(),
        "closed": moment(),
        "group_id": text(),
        "row": digits(),
    }
)
_SCORE_PARTS: Mapping[str, Schema] = {
    "scorer": text(),
    "version": text(),
    "state": text(words=_SCORE_STATES),
    "value": number(),
    "parts": named(number()),
    "reason": nullable(text()),
    "seconds": number("that scoring took, or null where the store does not know"),
    "again": flag("whether it came after the run's own"),
}
_NODE = members(
    {
        "i": count(),
        "parent": whole("-1 for the root"),
        "segment": digits(),
        "start": count(),
        "stop": count(),
        "kind": text(words=_KINDS),
        "finish": nullable(text(words=_FINISHES)),
        "text": text(),
        "text_of": text(words=("node", "segment")),
        "tokens": count(),
        "paths": count("scored leaves at or below it"),
        "value": number("mean reward of these leaves"),
        "advantage": number(),
        "entropy": number(),
        "logprob": number(),
        "policy_step": nullable(count()),
        "producer": text(),
        "leaf": nullable(ref("Leaf")),
        "own_reward": number(),
        "why": nullable(text()),
    }
)
TREE: Mapping[str, Schema] = {
    "tree_id": digits(),
    "run_id": text(),
    "group_id": text(),
    "index": count("place in its group"),
    "group": each(digits(), "ids of the group's trees"),
    "row": digits(),
    "label": nullable(text()),
    "purpose": text(words=_PURPOSES),
    "state": text(words=_TREE_STATES),
    "reason": nullable(text()),
    "opened": moment(),
    "closed": moment(),
    "policy": nullable(text("tree policy")),
    "trace_id": nullable(digits()),
    "messages": each(members({"role": text(), "content": text()})),
    "scorers": each(text()),
    "nodes": each(ref("Node"), "stretches of tokens between forks and ends, depth first"),
    "reward_mean": number(),
    "advantage_note": nullable(text("why advantages are missing or provisional")),
    "revision": text("changes with whatever the document shows"),
}
_TOKEN = members(
    {
        "id": count(),
        "text": nullable(text()),
        "logprob": number(),
        "sampled_logprob": number(),
        "entropy": number(),
    }
)
_RECEIPT = members(
    {
        "environment": text(),
        "version": text(),
        "outcome": text(),
        "effect": text(),
        "reward": number(),
        "done": flag(),
        "call": text(),
        "action": digits(),
    }
)
_STARTED = members(
    {
        "plan": text(),
        "fork": count(),
        "ordinal": count(),
        "beside": count(),
        "forced_tokens": count(),
        "temperature": number(),
        "max_new_tokens": count(),
    }
)
_PRUNED = members({"plan": text(), "kept_tokens": count()})
SEGMENT: Mapping[str, Schema] = {
    "segment": digits(),
    "parent": nullable(digits()),
    "fork": count(),
    "ordinal": count(),
    "kind": text(words=_KINDS),
    "finish": text(words=_FINISHES),
    "text": text(),
    "policy_step": nullable(count()),
    "producer": text(),
    "tokens": each(_TOKEN),
    "token_texts": nullable(text("why the tokens have no texts")),
    "scores": each(members({"end": count(), **_SCORE_PARTS})),
    "receipt": nullable(_RECEIPT),
    "plan": nullable(members({"started": nullable(_STARTED), "pruned": nullable(_PRUNED)})),
    "lineage": each(
        members({"batch": count(), "use": text(), "step": nullable(count())}),
        "the batches that trained on its tree",
    ),
    "trace_id": nullable(digits()),
    "commands": members({"lineage": text(), "tree": text()}),
}
COMPONENTS: Mapping[str, Schema] = {
    "TreeSummary": _TREE_SUMMARY,
    "Leaf": members({"reward": number(), "scores": each(ref("Score"))}),
    "Score": members(_SCORE_PARTS),
    "Node": _NODE,
}
