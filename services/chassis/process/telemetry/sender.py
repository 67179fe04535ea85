"""The queue of spans before the exporter: bounded, and what does not get through is counted."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

Count = Callable[[str, int], None]


class Sender:
    """A span processor before OpenTelemetry's batches, whose exporter is counted (`Counted`).

    make: makes the processor of batches from the counted exporter.
    exporter: exporter of batches.
    most: spans that wait or are under way; more are dropped.
    count: counts spans, by name of metric.
    """

    def __init__(
        self, make: Callable[[Any], Any], exporter: Any, *, most: int, count: Count
    ) -> None:
        self._most, self._count = most, count
        self._pending, self._lock = 0, threading.Lock()
        self._batches = make(Counted(exporter, self._done))

    def on_end(self, span: Any) -> None:
        """Pass a span on; drop it if too many wait."""
        with self._lock:
            is_full = self._pending >= self._most
            self._pending += not is_full
        if is_full:
            self._count("banyan.spans.dropped", 1)
        else:
            self._batches.on_end(span)

    def _done(self, spans: int, is_sent: bool) -> None:
        with self._lock:
            self._pending -= spans
        self._count("banyan.spans.sent" if is_sent else "banyan.spans.failed", spans)

    def shutdown(self) -> None:
        """Send what waits, as long as the exporter's deadline allows, and end."""
        self._batches.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what waits. Return whether that was done in time."""
        return bool(self._batches.force_flush(timeout_millis))


class Counted:
    """An exporter that says of each batch whether it was sent. done: told spans and success."""

    def __init__(self, exporter: Any, done: Callable[[int, bool], None]) -> None:
        self._exporter, self._done = exporter, done

    def export(self, spans: Sequence[Any]) -> Any:
        """Export a batch; return OpenTelemetry's result."""
        is_sent = False
        try:
            result = self._exporter.export(spans)
            is_sent = result.name == "SUCCESS"
        finally:
            self._done(len(spans), is_sent)
        return result

    def shutdown(self) -> None:
        """End the exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return whether the exporter has sent all."""
        return bool(self._exporter.force_flush(timeout_millis))
