"""gRPC as services use it: servers with health and reflection, errors that keep their reason, calls with deadlines."""

import asyncio
import errno
import inspect
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from banyan.errors import BanyanError, DeadlineMissed, InvalidInput, TemporaryError
from banyan.wire.status import error_of, status_of
from services.chassis.rpc.auth import Guard, bearers
from services.chassis.rpc.health import Health, Liveness

log = logging.getLogger(__name__)

MAX_BYTES = 64 << 20
RUN_KEY = "banyan-run"  # metadata: the only run that a call may be about; set by the gateway for joined nodes
LISTEN_S = 15.0  # that a port may be taken by somebody else: a connection that ends, or the process before this one
_LOOK_S = 0.1
_KEEPALIVE_MS = 20_000  # between the pings of a channel on which nothing is said
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.max_send_message_length", MAX_BYTES),
    ("grpc.so_reuseport", 0),  # a port in use is an error, not a second server beside the first
]


class _Errors(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Turns a handler's BanyanError into its status; logs anything else and answers INTERNAL without a traceback."""

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        if handler.response_streaming:
            if not inspect.isasyncgenfunction(getattr(handler, _slot(handler))):
                return handler  # it writes to its context by itself, as health's Watch does
            return handler._replace(
                **{_slot(handler): _stream(getattr(handler, _slot(handler)), details.method)}
            )
        return handler._replace(
            **{_slot(handler): _unary(getattr(handler, _slot(handler)), details.method)}
        )


def _slot(handler: Any) -> str:
    return f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"


def _unary(inner: Callable[..., Awaitable[Any]], method: str) -> Callable[..., Awaitable[Any]]:
    async def handle(request: Any, context: Any) -> Any:
        try:
            return await inner(request, context)
        except BanyanError as error:
            await context.abort_with_status(status_of(error))
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("%s failed", method)
            await context.abort(
                grpc.StatusCode.INTERNAL, f"{method} failed; the service's log has the details"
            )

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
        except Exception:
            log.exception("%s failed", method)
            await context.abort(
                grpc.StatusCode.INTERNAL, f"{method} failed; the service's log has the details"
            )

    return handle


class RpcServer:
    """A running server."""

    def __init__(
        self, server: grpc.aio.Server, address: str, health: Any, names: Sequence[str]
    ) -> None:
        self._server, self.address, self._health, self._names = (
            server,
            address,
            health,
            ("", *names),
        )

    async def set_serving(self, serving: bool) -> None:
        """What the health service says of every service here."""
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if serving
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in self._names:
            await self._health.set(name, status)

    async def stop(self, grace_s: float = 2.0) -> None:
        """Takes no new calls; ends the running ones after `grace_s`."""
        await self._server.stop(grace_s)


async def serve(
    listen: str,
    adders: Sequence[Callable[[grpc.aio.Server], None]],
    names: Sequence[str],
    *,
    secret: str = "",
    secret_file: str = "",
    credentials: grpc.ServerCredentials | None = None,
    generic: Sequence[Any] = (),
    most_bytes: int = MAX_BYTES,
    liveness: Liveness | None = None,
    most_calls: int = 0,
    patience_s: float = LISTEN_S,
) -> RpcServer:
    """Starts a server on host:port with health and, on a plain port, reflection.

    A port that is taken is waited for, up to `patience_s`; then, or for an address of another host, raises InvalidInput.

    With a `secret` every call but those of the health service must show it; `secret_file` tells callers where it stands.
    most_bytes: of a message that it takes; it is read whole before anybody is asked who sent it.
    most_calls: under way at once on one connection; 0 for as many as come.
    liveness: the pulses that health answers from under the name `liveness`.
    """
    guard = [Guard(secret, secret_file)] if secret else []
    options = dict(_OPTIONS) | {
        "grpc.max_receive_message_length": most_bytes
    }  # of two values of a name the first counts
    options |= {
        "grpc.http2.min_recv_ping_interval_without_data_ms": _KEEPALIVE_MS // 2
    }  # else it cuts what is quiet
    if most_calls:
        options |= {"grpc.max_concurrent_streams": most_calls}
    server = grpc.aio.server(interceptors=[*guard, _Errors()], options=list(options.items()))
    health = Health(liveness or Liveness())
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    for add in adders:
        add(server)
    if generic:
        server.add_generic_rpc_handlers(tuple(generic))
    if credentials is None:  # a port that strangers reach describes itself to nobody
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        reflection.enable_server_reflection((*names, health_name, reflection.SERVICE_NAME), server)
    host = listen.rsplit(":", 1)[0]
    port = await _bound(server, listen, credentials, patience_s)
    await server.start()
    running = RpcServer(server, f"{host}:{port}", health, names)
    await running.set_serving(True)
    return running


async def _bound(
    server: grpc.aio.Server,
    listen: str,
    credentials: grpc.ServerCredentials | None,
    patience_s: float,
) -> int:
    """The port that the server listens on from its start. Raises InvalidInput."""
    end = time.monotonic() + patience_s
    while True:
        try:
            if (
                port := server.add_secure_port(listen, credentials)
                if credentials
                else server.add_insecure_port(listen)
            ):
                return port
        except RuntimeError:
            pass
        taken = _taken(listen)
        if not taken or time.monotonic() > end:
            waited = (
                f"the port is in use, and was for {patience_s:g} s"
                if taken
                else "the address is not this host's"
            )
            raise InvalidInput(f"cannot listen on {listen}: {waited}; choose another")
        await asyncio.sleep(_LOOK_S)


def _taken(listen: str) -> bool:
    """Whether somebody else has the port; not, where the address itself is wrong."""
    host, _, port = listen.rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, ValueError, OverflowError) as error:
        return isinstance(error, OSError) and error.errno == errno.EADDRINUSE
    return True  # it was until just now


def channel(
    address: str,
    *,
    secret: str = "",
    root_pem: bytes | None = None,
    token: str = "",
    target_name: str = "",
) -> grpc.aio.Channel:
    """A channel that reconnects fast and shows the `secret`. With `root_pem` it speaks TLS and trusts that alone."""
    options = [
        *_OPTIONS,
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]
    if root_pem is None:
        return grpc.aio.insecure_channel(address, options=options, interceptors=bearers(secret))
    if target_name:
        options.append(("grpc.ssl_target_name_override", target_name))
    credentials = grpc.ssl_channel_credentials(root_certificates=root_pem)
    if token:
        credentials = grpc.composite_channel_credentials(
            credentials, grpc.access_token_call_credentials(token)
        )
    return grpc.aio.secure_channel(address, credentials, options=options)


async def call(
    method: Any,
    request: Any,
    deadline_s: float = 10.0,
    patience_s: float = 0.0,
    metadata: Sequence[tuple[str, str]] = (),
) -> Any:
    """One unary call; what may pass is tried again until `patience_s` has passed. Raises the BanyanError that it means."""
    end = time.monotonic() + patience_s
    delay = 0.05
    while True:
        try:
            return await method(request, timeout=deadline_s, metadata=tuple(metadata))
        except grpc.RpcError as error:
            meant = error_of(error, _name(method))
            passes = isinstance(meant, TemporaryError) and not isinstance(meant, DeadlineMissed)
            if not passes or time.monotonic() + delay > end:
                raise meant from None
        await asyncio.sleep(delay)
        delay = min(2 * delay, 1.0)


def _name(method: Any) -> str:
    raw = getattr(method, "_method", b"call")
    return raw.decode() if isinstance(raw, bytes) else str(raw)
