"""Document of a segment: its tokens with their numbers, its scores, its answer, its use. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from banyan.errors import NotFound
from banyan.segment import Segment
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.segments import segment_from_wire
from services.gateway.page.documents import token_texts, trees, why
from services.gateway.page.documents.runs import finite
from services.gateway.page.documents.token_texts import TokenTexts


def segment(
    message: tree_pb2.Tree,
    segment_id: bytes,
    consumers: Iterable[ts.Consumer],
    texts: TokenTexts | None,
) -> dict[str, Any]:
    """Return a segment of a tree. Raise NotFound.

    segment_id: its id, or a unique beginning
    consumers: batches that trained on the tree
    texts: the run's tokenizer; None where the store keeps none
    """
    found = [s for s in message.segments if s.id.startswith(segment_id)]
    if len(found) != 1:
        number = "there is no" if not found else "there are several"
        raise NotFound(f"{number} segment {segment_id.hex()} in tree {message.spec.tree_id.hex()}")
    stored, own = found[0], segment_from_wire(found[0])
    plans, scores = why.read(message.plans), trees.scores_by_leaf(message)
    return {
        "segment": own.id.hex(),
        "parent": own.parent.hex() or None,
        "fork": own.fork,
        "ordinal": own.ordinal,
        "kind": trees.kind_name(own),
        "finish": own.finish.name,
        "text": own.text,
        "policy_step": own.policy_step if own.policy else None,
        "producer": own.producer,
        "tokens": _tokens(own, _before(message, stored), texts),
        "token_texts": None if texts else token_texts.MISSING,
        "scores": [
            {"end": place.end, **score}
            for place, values in scores.items()
            if place.segment == own.id
            for score in values
        ],
        "receipt": _receipt(stored.receipt) if stored.HasField("receipt") else None,
        "plan": why.document(plans, own),
        "lineage": [_use(consumer) for consumer in consumers],
        "trace_id": trees.trace_id(message.spec.traceparent),
        "commands": {
            "lineage": f"banyan lineage {own.id.hex()[:16]}",
            "tree": f"banyan trees show {message.spec.tree_id.hex()[:16]}",
        },
    }


def _before(message: tree_pb2.Tree, own: tree_pb2.Segment) -> int | None:
    """Return the token before a segment's first one; None at the root."""
    by_id = {s.id: s for s in message.segments}
    parent, fork = own.parent, own.fork
    while parent:
        above = by_id[parent]
        if fork:
            return int(np.frombuffer(above.tokens, "<i4")[fork - 1])
        parent, fork = above.parent, above.fork
    return None


def _tokens(own: Segment, before: int | None, texts: TokenTexts | None) -> list[dict[str, Any]]:
    ids = own.tokens_T.tolist()
    words: Sequence[str | None] = texts.each(ids, before) if texts else [None] * len(ids)
    logprobs = _values(own.logprobs_T, len(ids))
    sampled = _values(own.sampled_logprobs_T, len(ids))
    entropies = _values(own.entropies_T, len(ids))
    return [
        {
            "id": ids[t],
            "text": words[t],
            "logprob": logprobs[t],
            "sampled_logprob": sampled[t],
            "entropy": entropies[t],
        }
        for t in range(len(ids))
    ]


def _values(values: Any, length: int) -> list[float | None]:
    if len(values) != length:
        return [None] * length
    return [None if (known := finite(float(v))) is None else round(known, 6) for v in values]


def _receipt(receipt: tree_pb2.Receipt) -> dict[str, Any]:
    observation = receipt.observation
    outcome = tree_pb2.ToolOutcome.Name(observation.outcome).removeprefix("TOOL_OUTCOME_")
    effect = tree_pb2.ToolEffect.Name(observation.effect).removeprefix("TOOL_EFFECT_")
    return {
        "environment": observation.environment,
        "version": observation.version,
        "outcome": outcome,
        "effect": effect,
        "reward": finite(observation.reward),
        "done": observation.done,
        "call": receipt.call,
        "action": observation.action.hex(),
    }


def _use(consumer: ts.Consumer) -> dict[str, Any]:
    return {
        "batch": consumer.batch.ordinal,
        "use": consumer.batch.use,
        "step": consumer.policy.step if consumer.HasField("policy") else None,
    }
