"""Claims and their spans: one trace for a tree, in which later claims link to the first one."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from banyan.v1 import events_pb2, tree_pb2
from services.chassis.process import telemetry
from services.rollout.engines.scripted.tokenizer import CharacterTokenizer
from services.rollout.node.claiming import TreeClaimer
from services.rollout.ports import Claim
from tests.rollout.growing import IID

ROOT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


class _Delivery:
    traceparent = ROOT
    data = events_pb2.GrowTree(run_id="r", tree_id=b"t" * 32, ticket=1).SerializeToString()

    def __init__(self) -> None:
        self.answers: list[str] = []

    async def ack(self) -> None:
        self.answers.append("ack")

    async def nak(self, delay_s: float) -> None:
        self.answers.append("nak")


class _Queue:
    def __init__(self) -> None:
        self.deliveries: list[_Delivery] = []

    async def fetch(self, batch: int, timeout_s: float) -> list[_Delivery]:
        self.deliveries.append(_Delivery())
        return self.deliveries[-1:]


class _Store:
    """A store that issues two epochs and keeps the first claim's traceparent."""

    def __init__(self) -> None:
        self.first, self.epochs = "", iter([1, 2, 0])

    async def claim(self, tree_id: bytes, ticket: int, traceparent: str = "") -> Claim:
        self.first = self.first or traceparent
        generate = {"name": IID, "settings": {"width": 2}, "max_new_tokens": 4}
        messages = [{"role": "user", "content": "go"}]
        spec = tree_pb2.TreeSpec(
            tree_id=tree_id,
            run_id="r",
            traceparent=ROOT,
            generate_json=json.dumps(generate),
            messages_json=json.dumps(messages),
        )
        return Claim(next(self.epochs), tree_pb2.Tree(spec=spec), self.first)


def claimer(queue: _Queue, fit: bool = True) -> TreeClaimer:
    thread: Any = SimpleNamespace(tokenizer=CharacterTokenizer())
    refresher: Any = SimpleNamespace(fit=fit)
    return TreeClaimer(queue, _Store(), thread, refresher, "n1")  # type: ignore[arg-type]


@pytest.fixture
def spans(monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_tracer", provider.get_tracer("test"))
    return exporter


async def test_a_later_claim_is_in_the_trees_trace_and_links_to_the_first(spans) -> None:
    claims = claimer(_Queue())
    for _ in range(3):
        for tree in await claims.claim(1):
            tree.span.end()
    first, second = spans.get_finished_spans()
    assert {span.name for span in (first, second)} == {"rollout.grow"}
    assert {span.context.trace_id for span in (first, second)} == {int("a" * 32, 16)}
    assert {span.parent.span_id for span in (first, second)} == {int("b" * 16, 16)}
    assert not first.links
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert [span.attributes["banyan.claim_epoch"] for span in (first, second)] == [1, 2]


async def test_without_telemetry_there_is_nothing_to_link() -> None:
    (live,) = await TreeClaimer(_Queue(), _Store(), CharacterTokenizer, "n1").take(1)  # type: ignore[arg-type]
    assert live.traceparent == ROOT
