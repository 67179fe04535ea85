"""Spans by names of banyan/runtime/telemetry_schema.py; others raise KeyError: tests find them.

While no spans are sent they cost nothing.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, Token
from typing import Any

from banyan.runtime.telemetry_schema import ATTRIBUTES, KINDS, SPANS, is_call
from services.chassis.process.telemetry.providers import active

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Variable that lets what was said leave in telemetry, by OpenTelemetry's conventions for GenAI."""


class Span:
    """A span, or a stand-in without effect while telemetry is off."""

    def __init__(self, inner: Any = None) -> None:
        self._inner = inner

    @property
    def traceparent(self) -> str:
        """W3C traceparent of this span; empty when no spans are sent."""
        if self._inner is None:
            return ""
        context = self._inner.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    @property
    def ids(self) -> tuple[str, str]:
        """Ids of its trace and of itself, in hex; empty when no spans are sent."""
        return self.traceparent[3:35], self.traceparent[36:52]

    @property
    def context(self) -> Any:
        """OpenTelemetry's context with this span, for exemplars; None when no spans are sent."""
        if self._inner is None:
            return None
        from opentelemetry.trace import set_span_in_context

        return set_span_in_context(self._inner)

    def set(self, **attributes: Any) -> None:
        """Add attributes by their names in the schema: `banyan_run="x"` is `banyan.run`."""
        if self._inner is not None:
            self._inner.set_attributes(named(attributes))

    def say(self, **contents: Callable[[], str]) -> None:
        """Add attributes that hold prompts, answers or tools' texts, where these may leave."""
        if self._inner is not None and _may_leave():
            self.set(**{name: content() for name, content in contents.items()})

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
        if _may_leave():
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


def _may_leave() -> bool:
    return os.environ.get(CONTENT, "").lower() == "true"


_OFF = Span()
_current: ContextVar[Span] = ContextVar("span", default=_OFF)


def start(
    name: str,
    traceparent: str = "",
    links: Sequence[str] = (),
    start_ns: int | None = None,
    kind: str = "",
    **attributes: Any,
) -> Span:
    """Return a new span that the caller ends. An empty traceparent begins a new trace.

    links: traceparents of the spans that it belongs to beside its parent.
    start_ns: Unix time of its start; None for now.
    kind: of the span; the schema's, if empty.
    """
    if not is_call(name):
        SPANS[name]
    if active.tracer is None:
        return _OFF
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, NonRecordingSpan, SpanKind, set_span_in_context

    parent = _context_of(traceparent)
    context = set_span_in_context(NonRecordingSpan(parent), Context()) if parent else Context()
    linked = [Link(c) for c in map(_context_of, links) if c is not None]
    return Span(
        active.tracer.start_span(
            name,
            context=context,
            kind=SpanKind[(kind or KINDS.get(name, "internal")).upper()],
            links=linked,
            attributes=named(attributes),
            start_time=start_ns,
        )
    )


@contextlib.contextmanager
def span(
    name: str, traceparent: str = "", links: Sequence[str] = (), kind: str = "", **attributes: Any
) -> Iterator[Span]:
    """Yield a span around a block, in which it is the current one.

    It records an exception that leaves the block.
    """
    with contextlib.ExitStack() as stack:
        block = start(name, traceparent, links, kind=kind, **attributes)
        stack.callback(block.end)
        stack.push(block.record)
        token = _current.set(block)
        stack.callback(_leave, token)
        yield block


def _leave(token: "Token[Span]") -> None:
    # A stream that its reader left is closed by the event loop, outside of its own context.
    with contextlib.suppress(ValueError):
        _current.reset(token)


@contextlib.contextmanager
def serving(method: str, traceparent: str) -> Iterator[Span]:
    """Yield the span of a call that is served, named `service/method` by convention."""
    name = method.lstrip("/")
    attributes = {"rpc.system.name": "grpc", "rpc.method": name}
    with span(name, traceparent, kind="server", **attributes) as block:
        yield block


def current() -> Span:
    """Return the span of the innermost block that runs now; a stand-in where there is none."""
    return _current.get()


def named(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return attributes by their names in the schema. Raise KeyError for another one."""
    names = {
        key if "." in key else key.replace("banyan_", "banyan.", 1): value
        for key, value in attributes.items()
    }
    for name in names:
        ATTRIBUTES[name]
    return names


def _context_of(traceparent: str) -> Any:
    parts = traceparent.split("-")
    if len(parts) != 4 or active.tracer is None:
        return None
    from opentelemetry.trace import SpanContext, TraceFlags

    try:
        trace, span, flags = (int(part, 16) for part in parts[1:])
    except ValueError:  # a malformed header begins a new trace
        return None
    context = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None
