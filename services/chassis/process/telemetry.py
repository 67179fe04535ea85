"""OpenTelemetry behind four functions: setup, span, count, observe.

Without OTEL_EXPORTER_OTLP_ENDPOINT they cost nothing. Names come from
banyan/runtime/telemetry_schema.py; others raise KeyError, so a test finds them.
"""

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

from banyan.runtime.telemetry_schema import BUCKETS, KINDS, METRICS, REASONS, SPANS

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Variable that lets what was said leave in telemetry, by OpenTelemetry's conventions for GenAI."""
_tracer: Any = None
_meter: Any = None
_providers: list[Any] = []
_instruments: dict[str, Any] = {}


class Span:
    """A span, or a stand-in without effect while telemetry is off."""

    def __init__(self, inner: Any = None) -> None:
        self._inner = inner

    @property
    def traceparent(self) -> str:
        """W3C traceparent of this span; empty when telemetry is off."""
        if self._inner is None:
            return ""
        context = self._inner.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def set(self, **attributes: Any) -> None:
        """Add attributes: `banyan_run="x"` is `banyan.run`."""
        if self._inner is not None:
            self._inner.set_attributes(_named(attributes))

    def link(self, traceparent: str) -> None:
        """Link another trace."""
        context = _context_of(traceparent)
        if self._inner is not None and context is not None:
            self._inner.add_link(context)

    def record(self, kind: object, error: BaseException | None, place: object) -> None:
        """Record the error that leaves a block; the arguments are those of `__exit__`.

        A cancellation is none: nothing failed. Words of errors may quote a prompt or an answer, so
        they leave only where CONTENT is set.
        """
        if self._inner is None or not isinstance(error, Exception):
            return
        name = type(error).__name__
        if os.environ.get(CONTENT, "").lower() == "true":
            self._inner.record_exception(error)
        else:
            self._inner.add_event("exception", {"exception.type": name})
        self.fail(name)

    def fail(self, reason: str) -> None:
        """Mark the span as failed, for a reason that holds nothing of prompts and answers."""
        if self._inner is not None:
            from opentelemetry.trace import Status, StatusCode

            self._inner.set_status(Status(StatusCode.ERROR, reason))

    def end(self) -> None:
        """End a span that `start` began."""
        if self._inner is not None:
            self._inner.end()


def setup(service: str) -> None:
    """Turn telemetry on for this process if OTEL_EXPORTER_OTLP_ENDPOINT is set."""
    global _tracer, _meter
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return
    from opentelemetry import metrics
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create(_resource(service))
    tracing = TracerProvider(resource=resource)
    tracing.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=8192, schedule_delay_millis=500)
    )
    metering = MeterProvider(
        [PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=5000)], resource
    )
    metrics.set_meter_provider(metering)
    _tracer, _meter = tracing.get_tracer("banyan"), metering.get_meter("banyan")
    _providers[:] = [tracing, metering]


def _resource(service: str) -> dict[str, str | int]:
    """Return what tells this process from others, by OpenTelemetry's conventions for resources."""
    host, process = socket.gethostname(), os.getpid()
    run = os.environ.get("BANYAN_RUN", "")
    return {
        "service.namespace": "banyan",
        "service.name": service,
        "service.version": metadata.version("banyan"),
        "service.instance.id": f"{host}:{process}",
        "host.name": host,
        "process.pid": process,
        **({"banyan.run": run} if run else {}),
    }


def shutdown() -> None:
    """Send the remaining data; wait two seconds at most."""
    for provider in _providers:
        if hasattr(provider, "force_flush"):
            provider.force_flush(2000)
        provider.shutdown()
    _providers.clear()


def start(
    name: str,
    traceparent: str = "",
    links: Sequence[str] = (),
    start_ns: int | None = None,
    **attributes: Any,
) -> Span:
    """Return a new span that the caller ends. An empty traceparent begins a new trace."""
    SPANS[name]
    if _tracer is None:
        return Span()
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, NonRecordingSpan, SpanKind, set_span_in_context

    parent = _context_of(traceparent)
    context = set_span_in_context(NonRecordingSpan(parent), Context()) if parent else Context()
    linked = [Link(c) for c in map(_context_of, links) if c is not None]
    return Span(
        _tracer.start_span(
            name,
            context=context,
            kind=SpanKind[KINDS.get(name, "internal").upper()],
            links=linked,
            attributes=_named(attributes),
            start_time=start_ns,
        )
    )


@contextlib.contextmanager
def span(
    name: str, traceparent: str = "", links: Sequence[str] = (), **attributes: Any
) -> Iterator[Span]:
    """Yield a span around a block; it records an exception that leaves the block."""
    with contextlib.ExitStack() as stack:
        block = start(name, traceparent, links, **attributes)
        stack.callback(block.end)
        stack.push(block.record)
        yield block


def kind_of(reason: str) -> str:
    """Return the kind of a reason, its first word if that is one of ours; else OTHER."""
    kind = reason.partition(":")[0]
    return kind if kind in REASONS else "OTHER"


def count(name: str, n: int | float = 1, **attributes: Any) -> None:
    """Add to a counter."""
    unit, description = METRICS[name]
    if _meter is not None:
        counter = _instrument(name, lambda: _meter.create_counter(name, unit, description))
        counter.add(n, _named(attributes))


def observe(name: str, value: float, **attributes: Any) -> None:
    """Record a value in a histogram."""
    unit, description = METRICS[name]
    if _meter is not None:
        bounds = BUCKETS[name]
        histogram = _instrument(
            name,
            lambda: _meter.create_histogram(
                name, unit, description, explicit_bucket_boundaries_advisory=bounds
            ),
        )
        histogram.record(value, _named(attributes))


def _instrument(name: str, make: Any) -> Any:
    if name not in _instruments:
        _instruments[name] = make()
    return _instruments[name]


def _named(attributes: dict[str, Any]) -> dict[str, Any]:
    from banyan.runtime.telemetry_schema import ATTRIBUTES

    named = {key.replace("banyan_", "banyan.", 1): value for key, value in attributes.items()}
    for key in named:
        ATTRIBUTES[key]
    return named


def _context_of(traceparent: str) -> Any:
    parts = traceparent.split("-")
    if len(parts) != 4 or _tracer is None:
        return None
    from opentelemetry.trace import SpanContext, TraceFlags

    try:
        trace, span, flags = (int(part, 16) for part in parts[1:])
    except ValueError:  # a malformed header begins a new trace
        return None
    context = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None
