"""The errors of gRPC handlers: ours become statuses, all others are logged and hidden."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from banyan.errors import BanyanError
from banyan.wire.status import status_of

log = logging.getLogger(__name__)


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Turns a handler's BanyanError into its status.

    Any other exception is logged and answered with INTERNAL, without a traceback.
    """

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        kind = kind_of_handler(handler)
        inner = getattr(handler, kind)
        if not handler.response_streaming:
            return handler._replace(**{kind: _unary(inner, details.method)})
        if not inspect.isasyncgenfunction(inner):
            return handler  # it writes to its context itself, as health's Watch does
        return handler._replace(**{kind: _stream(inner, details.method)})


def kind_of_handler(handler: Any) -> str:
    """Return the name of the handler's own method, for example "unary_stream"."""
    request = "stream" if handler.request_streaming else "unary"
    response = "stream" if handler.response_streaming else "unary"
    return f"{request}_{response}"


def _unary(inner: Callable[..., Awaitable[Any]], method: str) -> Callable[..., Awaitable[Any]]:
    async def handle(request: Any, context: Any) -> Any:
        try:
            return await inner(request, context)
        except BanyanError as error:
            await context.abort_with_status(status_of(error))
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception:  # of any kind: a caller must not see our traceback
            await _abort(context, method)

    return handle


def _stream(
    inner: Callable[..., AsyncIterator[Any]], method: str
) -> Callable[..., AsyncIterator[Any]]:
    async def handle(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for response in inner(request, context):
                yield response
        except BanyanError as error:
            await context.abort_with_status(status_of(error))
        except (grpc.aio.AbortError, asyncio.CancelledError, GeneratorExit):
            raise
        except Exception:  # of any kind: a caller must not see our traceback
            await _abort(context, method)

    return handle


async def _abort(context: Any, method: str) -> None:
    """Log the exception that is being handled and answer INTERNAL."""
    log.exception("%s failed", method)
    await context.abort(
        grpc.StatusCode.INTERNAL, f"{method} failed; the service's log has the details"
    )
