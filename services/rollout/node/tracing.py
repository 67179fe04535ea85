"""Spans of segments: one for each, below the tree's `rollout.grow`, from its request to its end."""

import json
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from banyan.plugins import Branch
from banyan.segment import Kind, Segment
from services.chassis.process import telemetry
from services.rollout.engines.port import Key, Request
from services.rollout.node.active_trees import ActiveTree


class Spans:
    """The times at which running segments were requested."""

    def __init__(self) -> None:
        self._requested_ns: dict[Key, int] = {}

    def requested(self, requests: Iterable[Request]) -> None:
        """Record the time of requests."""
        now = time.time_ns()
        self._requested_ns.update({request.key: now for request in requests})

    def forget(self, keys: Iterable[Key]) -> None:
        """Forget requests whose segments will not end here."""
        for key in keys:
            self._requested_ns.pop(key, None)

    def ended(self, tree: ActiveTree, segments: Iterable[Segment]) -> None:
        """Write the spans of segments that ended, and count their tokens."""
        sampled = cached = prefilled = 0
        for segment in segments:
            key = tree.grower.key(Branch(segment.parent, segment.fork, segment.ordinal))
            tokens, prefix = len(segment), 0
            if segment.parent and segment.kind is not Kind.TOOL:  # the engine sees it as a prefix
                is_sampled = segment.kind is Kind.POLICY
                prefix = tree.grower.tree.prefix_length(segment.parent, segment.fork)
                sampled += tokens if is_sampled else 0
                cached += segment.cached_tokens
                prefilled += prefix - segment.cached_tokens
            span = telemetry.start(
                "rollout.segment",
                tree.traceparent,
                start_ns=self._requested_ns.pop(key, None),
                banyan_tree=tree.spec.tree_id.hex(),
                banyan_segment=segment.id.hex(),
                banyan_tokens=tokens,
                banyan_policy_step=segment.policy_step,
                **_by_convention(segment, prefix),
            )
            span.say(**{"gen_ai.output.messages": partial(_message, segment.text)})
            span.end()
        telemetry.count("banyan.tokens.sampled", sampled)
        telemetry.count("banyan.tokens.cached", cached)
        telemetry.count("banyan.tokens.prefilled", prefilled)


def _by_convention(segment: Segment, prefix: int) -> dict[str, Any]:
    """Return the attributes of a segment that OpenTelemetry's conventions for GenAI name.

    prefix: tokens before it, unless nobody sampled it.
    """
    if segment.kind is Kind.TOOL:
        return {"banyan_action": segment.parent.hex()}
    return {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.usage.input_tokens": prefix,
        "gen_ai.usage.cache_read.input_tokens": segment.cached_tokens,
        "gen_ai.usage.output_tokens": len(segment) if segment.kind is Kind.POLICY else 0,
        "gen_ai.response.finish_reasons": [segment.finish.name],
    }


def _message(text: str) -> str:
    return json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": text}]}])
