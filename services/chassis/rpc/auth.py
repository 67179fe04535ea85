"""The secret of the ports: servers require it of every call, channels send it with every call.

Without a secret nothing is required. Channels send the trace of a call beside it.
"""

import hmac
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from banyan.errors import Refused
from banyan.reasons import Reason
from banyan.runtime.secret import KEY
from banyan.wire.status import status_of
from services.chassis.rpc import tracing

UNAUTHENTICATED = Reason.UNAUTHENTICATED
_OPEN = "/grpc.health.v1.Health/"  # probes have no secret, and learn only whether it serves


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses calls without the secret.

    path: file that holds the secret, for the message.
    """

    def __init__(self, secret: str, path: str) -> None:
        self._secret, self._path = secret.encode(), path

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        if details.method.startswith(_OPEN) or self._knows(details.invocation_metadata or ()):
            return await continuation(details)
        return grpc.stream_stream_rpc_method_handler(self._refuse)  # fits calls of every kind

    def _knows(self, metadata: Sequence[Any]) -> bool:
        value = next((value for key, value in metadata if key == KEY), "")
        sent = value if isinstance(value, bytes) else value.encode()
        return hmac.compare_digest(sent, self._secret)

    async def _refuse(self, requests: Any, context: Any) -> None:
        error = Refused(
            f"this port answers only who knows its secret: send metadata `{KEY}`"
            f" with what the file {self._path} holds",
            UNAUTHENTICATED,
        )
        await context.abort_with_status(status_of(error))


def bearers(secret: str) -> list[Any]:
    """Return the interceptors by which a channel sends the secret and the trace, one per kind of
    call.
    """
    kinds = (_UnaryUnary, _UnaryStream, _StreamUnary, _StreamStream)
    return [kind(secret) for kind in kinds]


class _Bearer:
    def __init__(self, secret: str) -> None:
        self._secret = ((KEY, secret),) if secret else ()

    async def _send(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        sent = (*self._secret, *tracing.metadata())
        if sent:
            metadata = grpc.aio.Metadata(*(details.metadata or ()), *sent)
            details = details._replace(metadata=metadata)
        return await continuation(details, request)


class _UnaryUnary(_Bearer, grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    intercept_unary_unary: Any = _Bearer._send


class _UnaryStream(_Bearer, grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    intercept_unary_stream: Any = _Bearer._send


class _StreamUnary(_Bearer, grpc.aio.StreamUnaryClientInterceptor):  # type: ignore[type-arg]
    intercept_stream_unary: Any = _Bearer._send


class _StreamStream(_Bearer, grpc.aio.StreamStreamClientInterceptor):  # type: ignore[type-arg]
    intercept_stream_stream: Any = _Bearer._send
