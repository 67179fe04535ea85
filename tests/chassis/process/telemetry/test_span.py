"""Telemetry: status, kind and resource of spans, buckets, and malformed headers of others."""

import asyncio
import os
from importlib import metadata

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from banyan.runtime.telemetry_schema import BUCKETS, KINDS, METRICS, SPANS
from services.chassis.process import telemetry
from services.chassis.process.telemetry import metrics, providers


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "nonsense",
        "00-zz-1-01",
        "00-" + "0" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "1" * 31 + "-" + "1" * 16 + "-01",
    ],
)
def test_a_traceparent_that_is_none_begins_a_new_trace(traceparent: str, monkeypatch) -> None:
    monkeypatch.setattr(telemetry.active, "tracer", TracerProvider().get_tracer("test"))
    span = telemetry.start("rollout.grow", traceparent, links=[traceparent])
    span.link(traceparent)
    span.end()
    assert span.traceparent and span.traceparent.split("-")[1] != "0" * 32


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(telemetry.active, "tracer", provider.get_tracer("test"))
    return spans


def test_a_span_that_an_error_leaves_has_failed_and_quotes_nothing(
    ended: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in ("", "true"):
        monkeypatch.setenv(telemetry.CONTENT, content)
        with pytest.raises(ValueError, match="secret"), telemetry.span("learner.step"):
            raise ValueError("secret")
    quiet, loud = ended.get_finished_spans()
    for span in (quiet, loud):
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "ValueError"
    assert "secret" not in quiet.to_json() and "ValueError" in quiet.to_json()
    assert "secret" in loud.to_json()


def test_a_cancelled_span_has_not_failed(ended: InMemorySpanExporter) -> None:
    with pytest.raises(asyncio.CancelledError), telemetry.span("learner.step"):
        raise asyncio.CancelledError
    (span,) = ended.get_finished_spans()
    assert span.status.status_code is StatusCode.UNSET and not span.events


def test_spans_that_a_message_begins_or_that_send_one_say_so(ended: InMemorySpanExporter) -> None:
    for name in ("gateway.open", "rollout.grow", "learner.step"):
        telemetry.start(name).end()
    kinds = [span.kind for span in ended.get_finished_spans()]
    assert kinds == [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.INTERNAL]
    assert set(KINDS) < set(SPANS)


def test_a_process_is_told_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANYAN_RUN", "r")
    found = providers._resource("rollout")
    assert found["service.name"] == "rollout" and found["service.namespace"] == "banyan"
    assert found["service.instance.id"] == f"{found['host.name']}:{os.getpid()}"
    assert found["service.version"] == metadata.version("banyan-rl") and found["banyan.run"] == "r"
    monkeypatch.delenv("BANYAN_RUN")
    assert "banyan.run" not in providers._resource("gateway")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("TIMEOUT: no answer in 5 s", "TIMEOUT"),
        ("EXCEPTION", "EXCEPTION"),
        ("INFRASTRUCTURE: the child ended", "INFRASTRUCTURE"),
        ("RETURNED: what a node says", "RETURNED"),
        ("STALE_EPOCH", "STALE_EPOCH"),
        ("STALENESS", "OTHER"),
        ("MY PASSWORD: hunter2", "OTHER"),
        ("", "OTHER"),
    ],
)
def test_only_the_kind_of_a_reason_leaves(reason: str, kind: str) -> None:
    assert telemetry.kind_of(reason) == kind


def test_histograms_tell_rewards_shares_and_steps_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("test")
    monkeypatch.setattr(telemetry.active, "meter", meter)
    monkeypatch.setattr(metrics, "_instruments", {})
    for reward in (0.25, 0.26, 0.75):
        telemetry.observe("banyan.step.reward", reward)
    data = reader.get_metrics_data()
    assert data is not None
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
    (point,) = metric.data.data_points
    assert sorted(count for count in point.bucket_counts if count) == [1, 2]
    assert tuple(point.explicit_bounds) == BUCKETS["banyan.step.reward"]


def test_buckets_rise_and_every_histogram_has_some() -> None:
    assert set(BUCKETS) <= set(METRICS)
    for name, bounds in BUCKETS.items():
        assert list(bounds) == sorted(set(bounds)), name
