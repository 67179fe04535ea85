"""A call inside a trace has a span at who serves it; other calls have none."""

from collections.abc import AsyncIterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from banyan.errors import NotFound
from banyan.v1 import learner_service_pb2 as pb
from banyan.v1 import learner_service_pb2_grpc as pb_grpc
from services.chassis.process import telemetry
from services.chassis.rpc import rpc

STATUS, WEIGHTS = "banyan.v1.LearnerService/GetStatus", "banyan.v1.LearnerService/FetchWeights"


class Learner(pb_grpc.LearnerServiceServicer):
    async def GetStatus(self, request, context):
        raise NotFound("no such run")

    async def FetchWeights(self, request, context):
        assert telemetry.current().ids[0] or not request.digest
        yield pb.FetchWeightsResponse(data=b"x")
        yield pb.FetchWeightsResponse(data=b"y")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(telemetry.active, "tracer", provider.get_tracer("test"))
    return spans


@pytest.fixture(params=["", "5" * 64])
async def stub(request) -> AsyncIterator[pb_grpc.LearnerServiceStub]:
    add = lambda s: pb_grpc.add_LearnerServiceServicer_to_server(Learner(), s)  # noqa: E731
    server = await rpc.serve("127.0.0.1:0", [add], ["x"], secret=request.param, secret_file="f")
    channel = rpc.channel(server.address, secret=request.param)
    yield pb_grpc.LearnerServiceStub(channel)
    await channel.close()
    await server.stop(0)


async def test_calls_of_a_trace_have_a_servers_span_in_it(
    stub: pb_grpc.LearnerServiceStub, ended: InMemorySpanExporter
) -> None:
    with telemetry.span("rollout.refresh") as outer:
        with pytest.raises(NotFound):
            await rpc.call(stub.GetStatus, pb.LearnerServiceGetStatusRequest())
        got = [r.data async for r in stub.FetchWeights(pb.FetchWeightsRequest(digest=b"d"))]
    assert got == [b"x", b"y"]
    status, weights, _ = ended.get_finished_spans()
    assert (status.name, weights.name) == (STATUS, WEIGHTS)
    for span in (status, weights):
        assert span.kind is SpanKind.SERVER and span.parent is not None
        assert f"{span.context.trace_id:032x}" == outer.ids[0]
        assert f"{span.parent.span_id:016x}" == outer.ids[1]
        assert span.attributes == {"rpc.system.name": "grpc", "rpc.method": span.name}
    assert status.status.status_code is StatusCode.ERROR
    assert status.status.description == "NotFound"
    assert weights.status.status_code is StatusCode.UNSET


async def test_a_call_outside_of_any_trace_has_no_span(
    stub: pb_grpc.LearnerServiceStub, ended: InMemorySpanExporter
) -> None:
    with pytest.raises(NotFound):
        await rpc.call(stub.GetStatus, pb.LearnerServiceGetStatusRequest())
    assert [r.data async for r in stub.FetchWeights(pb.FetchWeightsRequest())] == [b"x", b"y"]
    assert ended.get_finished_spans() == ()


async def test_a_nonsensical_trace_harms_no_call(
    stub: pb_grpc.LearnerServiceStub, ended: InMemorySpanExporter
) -> None:
    call = stub.FetchWeights(pb.FetchWeightsRequest(), metadata=(("traceparent", "nonsense"),))
    assert [r.data async for r in call] == [b"x", b"y"]
