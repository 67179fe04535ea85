"""The choice of traces that are sent: a share of all, and every one that failed or was slow.

One trace has spans in several processes. Whether it belongs to the share follows from its id, so
that all decide alike. Whether it failed is known to one of them, and late: each holds back the
spans of other traces for a while, and sends them once it hears that their trace is worth it.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

HELD = 20_000  # spans that are held back; beyond it the oldest traces are forgotten
REMEMBERED = 20_000  # ids of traces that failed or were slow
_SPACE = 1 << 64


class KeptTraces:
    """A span processor before another one.

    sender: processor of the spans that are sent.
    share: share of traces that are sent whole, from 0 to 1.
    slow_s: seconds after which a span makes its trace slow.
    count: counts spans, by name of metric.
    """

    def __init__(
        self,
        sender: Any,
        *,
        share: float,
        slow_s: float,
        count: Callable[[str, int], None],
        held: int = HELD,
    ) -> None:
        self._sender, self._share, self._slow_ns = sender, share, slow_s * 1e9
        self._most, self._note = held, count
        self._lock = threading.Lock()
        self._held: OrderedDict[int, list[Any]] = OrderedDict()  # by trace id
        self._count = 0
        self._kept: OrderedDict[int, None] = OrderedDict()
        self.tell: Callable[[int], None] = lambda trace_id: None
        """Called with a trace id that turned out to be worth sending, by any thread."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Do what processors do at a span's start: nothing here."""

    def _on_ending(self, span: Any) -> None:
        """Do what processors do before a span's end: nothing here."""

    def on_end(self, span: Any) -> None:
        """Send a span, or hold it back until its trace turns out to be worth it."""
        trace_id = span.context.trace_id
        if self.is_shared(trace_id):
            self._sender.on_end(span)
            return
        is_slow = span.end_time - span.start_time >= self._slow_ns
        if (is_slow or not span.status.is_ok) and self.keep(trace_id):
            self.tell(trace_id)
        with self._lock:
            is_kept = trace_id in self._kept
            forgotten = 0 if is_kept else self._hold(trace_id, span)
        if is_kept:
            self._sender.on_end(span)
        if forgotten:
            self._note("banyan.spans.forgotten", forgotten)

    @property
    def keeps_all(self) -> bool:
        """True if every trace is sent whole, so that there is nothing to tell."""
        return self._share >= 1

    def is_shared(self, trace_id: int) -> bool:
        """Return whether a trace belongs to the share, by the lower half of its id."""
        return trace_id % _SPACE < self._share * _SPACE

    def keep(self, trace_id: int) -> bool:
        """Send what is held of a trace, and what comes. Return False if that was so already."""
        with self._lock:
            if trace_id in self._kept:
                return False
            self._kept[trace_id] = None
            if len(self._kept) > REMEMBERED:
                self._kept.popitem(last=False)
            spans = self._held.pop(trace_id, [])
            self._count -= len(spans)
        for span in spans:
            self._sender.on_end(span)
        return True

    def _hold(self, trace_id: int, span: Any) -> int:
        """Hold a span back; return how many of the oldest traces are forgotten for it."""
        self._held.setdefault(trace_id, []).append(span)
        self._count += 1
        before = self._count
        while self._count > self._most:
            _, spans = self._held.popitem(last=False)
            self._count -= len(spans)
        return before - self._count

    def shutdown(self) -> None:
        """End the sender. What is held back was neither chosen nor wrong."""
        self._sender.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what the sender has. Return whether that was done in time."""
        return bool(self._sender.force_flush(timeout_millis))
