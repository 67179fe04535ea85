"""Spans and counts of answers to actions, in the traces of their trees: never what was said."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from banyan.environments.observation import Observation
from banyan.v1 import treestore_service_pb2 as ts
from services.chassis.process import telemetry


@contextmanager
def act(way: ts.ActionWay, tree_id: bytes, call: str) -> Iterator[telemetry.Span]:
    """Yield the span of an action's answer; note how long it took. call: text of the action."""
    began = time.monotonic()
    with telemetry.span(
        "verifier.act",
        way.traceparent,
        banyan_run=way.run_id,
        banyan_tree=tree_id.hex(),
        banyan_action=way.turns[-1].action.hex(),
        **{"gen_ai.operation.name": "execute_tool"},
    ) as span:
        span.say(**{"gen_ai.tool.call.arguments": lambda: call})
        yield span
    telemetry.observe("banyan.answer.duration", time.monotonic() - began)


def answered(span: telemetry.Span, observation: Observation, text: str) -> None:
    """Note how a step ended, and what it changed. text: the environment's answer."""
    outcome, effect = observation.outcome.name, observation.effect.name
    span.set(
        banyan_environment=observation.environment,
        banyan_outcome=outcome,
        banyan_effect=effect,
        **{"gen_ai.tool.name": observation.environment},
    )
    span.say(**{"gen_ai.tool.call.result": lambda: text})
    telemetry.count("banyan.answers", banyan_outcome=outcome, banyan_effect=effect)


@contextmanager
def replay(way: ts.ActionWay, action: bytes) -> Iterator[None]:
    """Make a span of a step whose state was lost, and is made again for a later action."""
    telemetry.count("banyan.replays")
    with telemetry.span(
        "verifier.replay", way.traceparent, banyan_run=way.run_id, banyan_action=action.hex()
    ):
        yield
