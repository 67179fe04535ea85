"""Claims and their spans: one trace for a tree, in which later claims link to the first one."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from banyan.environments.renderers import RendererSpec
from banyan.v1 import events_pb2, tree_pb2
from services.chassis.process import telemetry
from services.chassis.renderers.make import make
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

    def __init__(self, **more: Any) -> None:
        self.first, self.epochs, self.more = "", iter([1, 2, 0]), more
        self.returned: list[str] = []

    async def return_tree(self, tree_id: bytes, epoch: int, reason: str) -> None:
        self.returned.append(reason)

    async def claim(self, tree_id: bytes, ticket: int, traceparent: str = "") -> Claim:
        self.first = self.first or traceparent
        generate = {"name": IID, "settings": {"width": 2}, "max_new_tokens": 4} | self.more
        messages = [{"role": "user", "content": "go"}]
        spec = tree_pb2.TreeSpec(
            tree_id=tree_id,
            run_id="r",
            traceparent=ROOT,
            generate_json=json.dumps(generate),
            messages_json=json.dumps(messages),
        )
        return Claim(next(self.epochs), tree_pb2.Tree(spec=spec), self.first)


class _Model(CharacterTokenizer):
    """Characters whose turns a model writes."""

    def renderer(self, spec: RendererSpec) -> Any:
        return make(spec, None, frozenset())


def claimer(
    queue: _Queue, fit: bool = True, store: Any = None, tokenizer: Any = None
) -> TreeClaimer:
    thread: Any = SimpleNamespace(tokenizer=tokenizer or CharacterTokenizer())
    refresher: Any = SimpleNamespace(fit=fit)
    return TreeClaimer(queue, store or _Store(), thread, refresher, "n1")  # type: ignore[arg-type]


@pytest.fixture
def spans(monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry.active, "tracer", provider.get_tracer("test"))
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
    (tree,) = await claimer(_Queue()).claim(1)
    assert tree.traceparent == ROOT


async def test_a_node_with_another_renderer_gives_the_tree_back_by_name() -> None:
    renderer = {"name": "qwen3", "version": "0.1.13", "settings": {}}
    environment = {"name": "calculator", "settings": {}, "turns": 1, "answer_chars": 99}
    store, queue = _Store(environment=environment | {"renderer": renderer}), _Queue()
    assert not await claimer(queue, store=store, tokenizer=_Model()).claim(1)
    assert store.returned[0].startswith("UNABLE: the tree has renderer qwen3 0.1.13, this node has")
    assert queue.deliveries[0].answers == ["ack"]
