"""Spans of a node: one per segment, below the tree's `rollout.grow`, from when it was asked for until it ended."""

import time
from collections.abc import Iterable

from banyan.plugins import Branch
from banyan.segment import Kind, Segment
from services.chassis.process import telemetry
from services.rollout.engines.port import Key, Request
from services.rollout.node.active_trees import ActiveTree


class Spans:
    """When each running segment was asked for."""

    def __init__(self) -> None:
        self._asked_ns: dict[Key, int] = {}

    def asked(self, requests: Iterable[Request]) -> None:
        """Notes the time."""
        now = time.time_ns()
        self._asked_ns.update({request.key: now for request in requests})

    def forget(self, keys: Iterable[Key]) -> None:
        """These will not end here."""
        for key in keys:
            self._asked_ns.pop(key, None)

    def ended(self, live: ActiveTree, segments: Iterable[Segment]) -> None:
        """Writes the spans of segments that ended."""
        for segment in segments:
            key = live.grower.key(Branch(segment.parent, segment.fork, segment.ordinal))
            tokens = len(segment)
            if segment.parent:
                prefix = sum(
                    end for _, end in live.grower.tree.pieces(segment.parent, segment.fork)
                )
                telemetry.count(
                    "banyan.tokens.sampled", tokens if segment.kind is Kind.POLICY else 0
                )
                telemetry.count("banyan.tokens.cached", segment.cached_tokens)
                telemetry.count("banyan.tokens.prefilled", prefix - segment.cached_tokens)
            telemetry.start(
                "rollout.segment",
                live.traceparent,
                start_ns=self._asked_ns.pop(key, None),
                banyan_tree=live.spec.tree_id.hex(),
                banyan_segment=segment.id.hex(),
                banyan_tokens=tokens,
                banyan_policy_step=segment.policy_step,
            ).end()
