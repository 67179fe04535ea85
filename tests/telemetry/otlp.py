"""A real receiver of OTLP over gRPC, which keeps what it is sent."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Receiver(
    trace_service_pb2_grpc.TraceServiceServicer, metrics_service_pb2_grpc.MetricsServiceServicer
):
    """A receiver that keeps spans as (service, span), and the names of metrics."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        self.metrics: set[str] = set()
        self.env: dict[str, str] = {}

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


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """Yield a receiver; `env` has the variables by which services find it."""
    receiver, server = Receiver(), grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(receiver, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    receiver.env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_INSECURE": "true",
    }
    try:
        yield receiver
    finally:
        await server.stop(1.0)
