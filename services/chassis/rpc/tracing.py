"""Calls inside traces: whoever serves a call of a trace has a span in it, by W3C's traceparent."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from services.chassis.process import telemetry
from services.chassis.rpc.errors import kind_of_handler

KEY = "traceparent"


def metadata() -> tuple[tuple[str, str], ...]:
    """Return what a call sends for the current span; nothing outside of one."""
    traceparent = telemetry.current().traceparent
    return ((KEY, traceparent),) if traceparent else ()


class Traced(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Makes a span of every call that names a trace. Calls without one cost nothing."""

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        traceparent = next((v for k, v in details.invocation_metadata or () if k == KEY), "")
        if handler is None or not isinstance(traceparent, str) or not traceparent:
            return handler
        kind = kind_of_handler(handler)
        wrap = _stream if handler.response_streaming else _unary
        inner = getattr(handler, kind)
        return handler._replace(**{kind: wrap(inner, details.method, traceparent)})


def _unary(
    inner: Callable[..., Awaitable[Any]], method: str, traceparent: str
) -> Callable[..., Awaitable[Any]]:
    async def handle(request: Any, context: Any) -> Any:
        with telemetry.serving(method, traceparent):
            return await inner(request, context)

    return handle


def _stream(
    inner: Callable[..., AsyncIterator[Any]], method: str, traceparent: str
) -> Callable[..., AsyncIterator[Any]]:
    async def handle(request: Any, context: Any) -> AsyncIterator[Any]:
        # gRPC runs a call, to its last response, in one task: the span is current in that alone.
        with telemetry.serving(method, traceparent):
            async for response in inner(request, context):
                yield response

    return handle
