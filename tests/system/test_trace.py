"""One trace: a prompt's spans from all five services, with their parents and links, over OTLP."""

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from banyan.runtime.telemetry_schema import ATTRIBUTES, METRICS, SERVICES, SPANS
from banyan.v1 import runstore_service_pb2 as rs
from tests.faults import tool_load
from tests.faults.harness import system

pytestmark = pytest.mark.slow


class Receiver(
    trace_service_pb2_grpc.TraceServiceServicer, metrics_service_pb2_grpc.MetricsServiceServicer
):
    """A receiver that keeps spans as (service, span), and the names of metrics."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        self.metrics: set[str] = set()

    async def Export(self, request: Any, context: Any) -> Any:
        if isinstance(request, metrics_service_pb2.ExportMetricsServiceRequest):
            for resource in request.resource_metrics:
                self.metrics |= {m.name for scope in resource.scope_metrics for m in scope.metrics}
            return metrics_service_pb2.ExportMetricsServiceResponse()
        for resource in request.resource_spans:
            service = next(
                a.value.string_value
                for a in resource.resource.attributes
                if a.key == "service.name"
            )
            self.spans += [
                (service, span) for scope in resource.scope_spans for span in scope.spans
            ]
        return trace_service_pb2.ExportTraceServiceResponse()


async def test_a_prompts_life_is_one_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver()
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(receiver, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    otel = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_INSECURE": "true",
    }
    async with system(tmp_path / "s", otel) as made:
        await made.create(tool_load.tool_load(tmp_path, tool_load.CALCULATOR, steps=2))
        run = await made.finish()
        await asyncio.sleep(1.0)  # the exporters' batch delay
    await server.stop(1.0)
    assert run.state == rs.RUN_STATE_SUCCEEDED, run.cause
    check_spans(receiver.spans)
    assert receiver.metrics <= set(METRICS), receiver.metrics - set(METRICS)
    assert {"banyan.segments.stored", "banyan.answers"} <= receiver.metrics


def check_spans(spans: list[tuple[str, Any]]) -> None:
    assert {span.name for _, span in spans} <= set(SPANS)
    assert {a.key for _, span in spans for a in span.attributes} <= set(ATTRIBUTES)
    assert {service for service, _ in spans} == set(SERVICES)
    by_id = {span.span_id: span for _, span in spans}
    traces: dict[bytes, list[Any]] = defaultdict(list)
    for _, span in spans:
        traces[span.trace_id].append(span)
    consumed = [t for t in traces.values() if any(s.name == "learner.consume" for s in t)]
    assert consumed, "no tree's trace reaches the learner"
    for trace in consumed:
        check_tree(trace, by_id)
    for name in ("learner.checkpoint", "rollout.refresh"):
        linked = [s for _, s in spans if s.name == name and s.links]
        assert linked, name
        assert {by_id[link.span_id].name for s in linked for link in s.links} == {"learner.step"}


def check_tree(trace: list[Any], by_id: dict[bytes, Any]) -> None:
    names = {span.name for span in trace}
    wanted = {
        "gateway.open",
        "rollout.grow",
        "rollout.segment",
        "verifier.act",
        "verifier.score",
        "treestore.ingest",
        "learner.consume",
    }
    assert wanted <= names, wanted - names
    (root,) = [span for span in trace if not span.parent_span_id]
    assert root.name == "gateway.open"
    parents = {"rollout.segment": "rollout.grow"}
    for span in trace:
        if span is not root:
            assert by_id[span.parent_span_id].name == parents.get(span.name, "gateway.open"), (
                span.name
            )
            assert span.start_time_unix_nano <= span.end_time_unix_nano
    acts = [attributes(span) for span in trace if span.name == "verifier.act"]
    told = {"banyan.run", "banyan.tree", "banyan.action", "banyan.environment"}
    for act in acts:  # whose, which and how, and never what was said
        assert set(act) == told | {"banyan.outcome", "banyan.effect"}
        assert (act["banyan.outcome"], act["banyan.effect"]) == ("OK", "NONE")
    answers = [
        a["banyan.action"]
        for a in map(attributes, trace)
        if "banyan.segment" in a and "banyan.action" in a
    ]
    assert sorted(answers) == sorted(act["banyan.action"] for act in acts)
    (consume,) = [span for span in trace if span.name == "learner.consume"]
    batch = by_id[consume.links[0].span_id]
    assert batch.name == "learner.batch" and batch.trace_id != root.trace_id
    assert any(link.trace_id == root.trace_id for link in batch.links), (
        "the batch does not link the tree"
    )


def attributes(span: Any) -> dict[str, str]:
    return {attribute.key: attribute.value.string_value for attribute in span.attributes}
