"""Telemetry: status, kind and resource of spans, buckets, and malformed headers of others."""

import asyncio
import os
from importlib import metadata
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from banyan.errors import InvalidInput
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


def test_what_was_said_leaves_only_where_it_may(
    ended: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def content() -> str:
        asked.append("asked")
        return "the prompt"

    for allowed in ("", "false", "true"):
        monkeypatch.setenv(telemetry.CONTENT, allowed)
        span = telemetry.start("gateway.open")
        span.say(**{"gen_ai.input.messages": content})
        span.end()
    said = [span.attributes for span in ended.get_finished_spans()]
    assert said == [{}, {}, {"gen_ai.input.messages": "the prompt"}] and asked == ["asked"]


def test_a_span_has_its_start_its_kind_and_its_links(ended: InMemorySpanExporter) -> None:
    with telemetry.span("learner.step") as step:
        pass
    span = telemetry.start("rollout.refresh", links=[step.traceparent, ""], start_ns=5)
    span.link(step.traceparent)
    span.end()
    (_, refresh) = ended.get_finished_spans()
    assert refresh.start_time == 5 and refresh.parent is None
    linked = [f"{link.context.trace_id:032x}" for link in refresh.links]
    assert linked == [step.ids[0]] * 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1.5", "BANYAN_TRACE_SHARE='1.5' must be a number from 0 to 1"),
        ("-0.1", "from 0 to 1"),
        ("some", "from 0 to 1"),
        ("nan", "from 0 to 1"),
    ],
)
def test_a_share_that_is_none_is_refused(
    text: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(providers.SHARE, text)
    with pytest.raises(InvalidInput, match=words):
        providers._number(providers.SHARE, 1.0, most=1.0)


def test_all_traces_are_sent_unless_a_share_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1024")
    monkeypatch.delenv(providers.SHARE, raising=False)
    for share, whole in (("", True), ("0.5", False)):
        monkeypatch.setenv(providers.SHARE, share)
        made = providers.Providers()
        made._tracer(Resource({}))
        assert made.kept is not None and made.kept.keeps_all is whole
        made.shutdown()
        assert made.tracer is None and made.kept is None


def test_metrics_are_served_until_the_end_and_settings_of_the_user_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = tmp_path / "verifier.json"
    wanted = dict.fromkeys(providers._DEFAULTS, "9000") | {
        providers.OTLP: "",
        providers.LISTEN: "127.0.0.1:0",
        providers.TARGET: str(target),
        "BANYAN_SECRET_FILE": "",
    }
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    made = providers.Providers()
    made.setup("verifier")
    assert {name: os.environ[name] for name in wanted} == wanted
    assert made.tracer is None and made.meter is not None and target.exists()
    made.shutdown()
    assert made.meter is None and not target.exists()


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
