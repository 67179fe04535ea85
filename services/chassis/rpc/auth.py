"""The secret at the ports: servers ask every call for it, channels send it with every call. Without one nothing is asked."""

import hmac
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from banyan.errors import Refused
from banyan.reasons import Reason
from banyan.runtime.secret import KEY
from banyan.wire.status import status_of

UNAUTHENTICATED = Reason.UNAUTHENTICATED
_OPEN = "/grpc.health.v1.Health/"  # probes have no secret, and learn only that something serves


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses calls without the secret. `where`: the file that holds it, for the message."""

    def __init__(self, secret: str, where: str) -> None:
        self._secret, self._where = secret.encode(), where

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        if details.method.startswith(_OPEN) or self._knows(details.invocation_metadata or ()):
            return await continuation(details)
        return grpc.stream_stream_rpc_method_handler(self._refuse)  # takes calls of every shape

    def _knows(self, metadata: Sequence[Any]) -> bool:
        shown = next((value for key, value in metadata if key == KEY), "")
        return hmac.compare_digest(
            shown if isinstance(shown, bytes) else shown.encode(), self._secret
        )

    async def _refuse(self, requests: Any, context: Any) -> None:
        error = Refused(
            f"this port answers only who knows its secret: send metadata `{KEY}` with what the file {self._where} holds",
            UNAUTHENTICATED,
        )
        await context.abort_with_status(status_of(error))


def bearers(secret: str) -> list[Any]:
    """What makes a channel's calls carry the secret: gRPC wants an object for each shape of call."""
    return (
        [shape(secret) for shape in (_UnaryUnary, _UnaryStream, _StreamUnary, _StreamStream)]
        if secret
        else []
    )


class _Bearer:
    def __init__(self, secret: str) -> None:
        self._secret = secret

    async def _send(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        metadata = grpc.aio.Metadata(*(details.metadata or ()), (KEY, self._secret))
        return await continuation(details._replace(metadata=metadata), request)


class _UnaryUnary(_Bearer, grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    intercept_unary_unary: Any = _Bearer._send


class _UnaryStream(_Bearer, grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    intercept_unary_stream: Any = _Bearer._send


class _StreamUnary(_Bearer, grpc.aio.StreamUnaryClientInterceptor):  # type: ignore[type-arg]
    intercept_stream_unary: Any = _Bearer._send


class _StreamStream(_Bearer, grpc.aio.StreamStreamClientInterceptor):  # type: ignore[type-arg]
    intercept_stream_stream: Any = _Bearer._send
