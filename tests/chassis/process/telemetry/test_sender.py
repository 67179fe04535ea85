"""The queue before the exporter: nothing waits for it, and every span is accounted for."""

import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

from services.chassis.process.telemetry.sender import Sender


class Exporter:
    """An exporter that waits until it may go on, and fails if told so."""

    def __init__(self, result: SpanExportResult | Exception = SpanExportResult.SUCCESS) -> None:
        self.result, self.goes = result, threading.Event()
        self.began = threading.Event()

    def export(self, spans: Any) -> SpanExportResult:
        self.began.set()
        assert self.goes.wait(30)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 0) -> bool:
        return True


def sent_by(exporter: Exporter, spans: int, most: int) -> Counter[str]:
    """Return what became of spans that ended while the exporter did not answer."""
    counts: Counter[str] = Counter()

    def count(name: str, n: int) -> None:
        counts[name] += n

    def batches(counted: Any) -> BatchSpanProcessor:
        return BatchSpanProcessor(
            counted, max_queue_size=1000, max_export_batch_size=2, schedule_delay_millis=1
        )

    sender = Sender(batches, exporter, most=most, count=count)
    tracer = TracerProvider().get_tracer("test")
    for _ in range(spans):
        span: Any = tracer.start_span("learner.step")
        span.end()
        sender.on_end(span)  # returns at once, whatever the exporter does
    exporter.goes.set()
    sender.shutdown()
    return counts


def test_all_are_sent_where_there_is_room() -> None:
    assert sent_by(Exporter(), 10, most=10) == {"banyan.spans.sent": 10}


def test_what_has_no_room_is_dropped_and_counted() -> None:
    assert sent_by(Exporter(), 25, most=10) == {"banyan.spans.sent": 10, "banyan.spans.dropped": 15}


@pytest.mark.parametrize("result", [SpanExportResult.FAILURE, RuntimeError("away")])
def test_what_no_receiver_took_is_counted_and_makes_room(result: Any) -> None:
    counts = sent_by(Exporter(result), 7, most=10)
    assert counts == {"banyan.spans.failed": 7}


def test_room_comes_back_once_a_batch_is_done() -> None:
    counts: Counter[str] = Counter()
    exporter = SimpleNamespace(export=lambda spans: SpanExportResult.SUCCESS, shutdown=lambda: None)
    sender = Sender(
        lambda counted: SimpleNamespace(on_end=lambda span: counted.export([span])),
        exporter,
        most=1,
        count=lambda name, n: counts.update({name: n}),
    )
    for _ in range(5):
        sender.on_end(object())
    assert counts == {"banyan.spans.sent": 5}
