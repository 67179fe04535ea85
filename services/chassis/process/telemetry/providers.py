"""Providers of OpenTelemetry in this process: what is sent by OTLP, and what /metrics reads."""

import os
import socket
from typing import TYPE_CHECKING, Any, cast

from banyan.errors import InvalidInput
from banyan.runtime.distribution import installed_version
from services.chassis.process.telemetry.kept_traces import KeptTraces
from services.chassis.process.telemetry.sender import Sender

if TYPE_CHECKING:
    from services.chassis.process.telemetry.scrape import Scrape

OTLP = "OTEL_EXPORTER_OTLP_ENDPOINT"
LISTEN = "BANYAN_METRICS_LISTEN"
"""host:port of this process's /metrics; port 0 picks a free one. Without it there is none."""
TARGET = "BANYAN_METRICS_TARGET"
"""File in which the address of /metrics is written, as Prometheus reads targets from files."""
SHARE, SLOW = "BANYAN_TRACE_SHARE", "BANYAN_TRACE_SLOW_S"
_DEFAULTS = {  # of the SDK's own settings
    "OTEL_BSP_MAX_QUEUE_SIZE": "8192",  # spans that wait for the exporter
    "OTEL_BSP_SCHEDULE_DELAY": "2000",
    "OTEL_METRIC_EXPORT_INTERVAL": "15000",
}


class Providers:
    """Makers of this process's spans and metrics; there are none until `setup`.

    tracer: of OpenTelemetry; None while no spans are sent.
    meter: of OpenTelemetry; None while nothing takes metrics.
    kept: the choice of traces that are sent; None while no spans are sent.
    """

    def __init__(self) -> None:
        self.tracer: Any = None
        self.meter: Any = None
        self.kept: KeptTraces | None = None
        self._scrape: Scrape | None = None
        self._providers: list[Any] = []

    def setup(self, service: str) -> None:
        """Turn on what the environment asks for. Raise InvalidInput for a wrong setting."""
        sends, listen = bool(os.environ.get(OTLP)), os.environ.get(LISTEN, "")
        if not sends and not listen:
            return
        from opentelemetry.sdk.resources import Resource

        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)
        resource = Resource.create(_resource(service))
        self._meter(resource, sends, listen)
        if sends:
            self._tracer(resource)

    def _meter(self, resource: Any, sends: bool, listen: str) -> None:
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        readers: list[Any] = []
        if sends:
            from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

            readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
        if listen:
            readers.append(InMemoryMetricReader())
        provider = MeterProvider(readers, resource)
        metrics.set_meter_provider(provider)
        self.meter = provider.get_meter("banyan")
        self._providers.append(provider)
        if listen:
            from services.chassis.process.telemetry.scrape import Scrape

            self._scrape = Scrape(readers[-1].get_metrics_data)
            self._scrape.start(listen, os.environ.get(TARGET, ""))

    def _tracer(self, resource: Any) -> None:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from services.chassis.process.telemetry.metrics import count

        most = int(os.environ["OTEL_BSP_MAX_QUEUE_SIZE"])
        sender = Sender(BatchSpanProcessor, OTLPSpanExporter(), most=most, count=count)
        share = _number(SHARE, 1.0, most=1.0)
        slow_s = _number(SLOW, 30.0)
        self.kept = KeptTraces(sender, share=share, slow_s=slow_s, count=count)
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(cast(Any, self.kept))  # its base would load the SDK
        self.tracer = provider.get_tracer("banyan")
        self._providers.append(provider)

    def shutdown(self) -> None:
        """Send the remaining data, within two seconds a provider; end /metrics."""
        for provider in self._providers:
            provider.force_flush(2000)
            provider.shutdown()
        self._providers.clear()
        if self._scrape is not None:
            self._scrape.stop()
        self.tracer = self.meter = self.kept = self._scrape = None


active = Providers()


def _number(name: str, default: float, most: float = float("inf")) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        bounds = f"from 0 to {most:g}" if most < float("inf") else "of at least 0"
        raise InvalidInput(f"{name}={text!r} must be a number {bounds}")
    return value


def _resource(service: str) -> dict[str, str | int]:
    """Return what tells this process from others, by OpenTelemetry's conventions for resources."""
    host, process = socket.gethostname(), os.getpid()
    run = os.environ.get("BANYAN_RUN", "")
    return {
        "service.namespace": "banyan",
        "service.name": service,
        "service.version": installed_version(),
        "service.instance.id": f"{host}:{process}",
        "host.name": host,
        "process.pid": process,
        **({"banyan.run": run} if run else {}),
    }
