"""gRPC as services use it: servers with health and reflection, errors with reasons, deadlines."""

import asyncio
import errno
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from banyan.errors import DeadlineMissed, InvalidInput, TemporaryError
from banyan.wire.status import error_of
from services.chassis.rpc.auth import Guard, bearers
from services.chassis.rpc.errors import ErrorInterceptor
from services.chassis.rpc.health import Health, Liveness
from services.chassis.rpc.tracing import Traced

MAX_BYTES = 64 << 20
# Metadata: the only run that a call may be about. The gateway sets it for joined nodes.
RUN_KEY = "banyan-run"
# Metadata: the joined node that calls. The gateway sets it with the run.
NODE_KEY = "banyan-node"
# Wait for a port that is in use: by a connection that is ending, or by this process's predecessor.
LISTEN_S = 15.0
_POLL_S = 0.1
_KEEPALIVE_MS = 20_000  # between the pings of an idle channel
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.max_send_message_length", MAX_BYTES),
    ("grpc.so_reuseport", 0),  # a port in use is an error, not a second server beside the first
]


class RpcServer:
    """A running server."""

    def __init__(
        self, server: grpc.aio.Server, address: str, health: Any, names: Sequence[str]
    ) -> None:
        self._server, self._health = server, health
        self._names = ("", *names)
        self.address = address

    async def set_serving(self, serving: bool) -> None:
        """Set the readiness of every service here."""
        statuses = health_pb2.HealthCheckResponse
        status = statuses.SERVING if serving else statuses.NOT_SERVING
        for name in self._names:
            await self._health.set(name, status)

    async def stop(self, grace_s: float = 2.0) -> None:
        """Accept no new calls; end the running ones after `grace_s`."""
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
    """Start a server on host:port with health and, on a plain port, reflection.

    Wait up to `patience_s` for a port that is in use. Raise InvalidInput if it still is, or if the
    address is another host's.

    secret: every call except those of the health service must carry it; empty for none.
    secret_file: path of the secret, for the refusal of callers without it.
    generic: handlers of services that are known by name alone.
    most_bytes: limit of a request, which is read whole before its sender is checked.
    most_calls: limit of calls at once on one connection; 0 for none.
    liveness: pulses behind the health service's answer for `liveness`.
    """
    guard = [Guard(secret, secret_file)] if secret else []
    options = _server_options(most_bytes, most_calls)
    server = grpc.aio.server(interceptors=[*guard, ErrorInterceptor(), Traced()], options=options)
    health = Health(liveness or Liveness())
    by_name: Any = _ByName(server)
    health_pb2_grpc.add_HealthServicer_to_server(health, by_name)
    for add in adders:
        add(by_name)
    if generic:
        server.add_generic_rpc_handlers(tuple(generic))
    if credentials is None:  # a port for other hosts does not describe itself
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        reflection.enable_server_reflection((*names, health_name, reflection.SERVICE_NAME), server)
    host = listen.rsplit(":", 1)[0]
    port = await _bind(server, listen, credentials, patience_s)
    await server.start()
    running = RpcServer(server, f"{host}:{port}", health, names)
    await running.set_serving(True)
    return running


class _ByName:
    """A server as generated code sees it, to which methods are added by name alone.

    For methods that are registered, too, gRPC 1.85 keeps a task for each, and waits for all of them
    anew at each call.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self.add_generic_rpc_handlers = server.add_generic_rpc_handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Register nothing: the generic handlers of the same service know all of its methods."""


def _server_options(most_bytes: int, most_calls: int) -> list[tuple[str, Any]]:
    # By name: of two values of an option the first would count.
    options = dict(_OPTIONS)
    options["grpc.max_receive_message_length"] = most_bytes
    # Otherwise the server closes connections whose clients ping while idle.
    options["grpc.http2.min_recv_ping_interval_without_data_ms"] = _KEEPALIVE_MS // 2
    if most_calls:
        options["grpc.max_concurrent_streams"] = most_calls
    return list(options.items())


async def _bind(
    server: grpc.aio.Server,
    listen: str,
    credentials: grpc.ServerCredentials | None,
    patience_s: float,
) -> int:
    """Return the port that the server will listen on. Raise InvalidInput."""
    deadline = time.monotonic() + patience_s
    while True:
        port = _try_bind(server, listen, credentials)
        if port:
            return port
        in_use = _in_use(listen)
        if not in_use:
            raise InvalidInput(
                f"cannot listen on {listen}: the address is not this host's; choose another"
            )
        if time.monotonic() > deadline:
            raise InvalidInput(
                f"cannot listen on {listen}: the port is in use, and was for {patience_s:g} s;"
                " choose another"
            )
        await asyncio.sleep(_POLL_S)


def _try_bind(
    server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None
) -> int:
    """Return the port; 0 if it cannot be bound."""
    try:
        if credentials is None:
            return server.add_insecure_port(listen)
        return server.add_secure_port(listen, credentials)
    except RuntimeError:
        return 0


def _in_use(listen: str) -> bool:
    """Return True if another process has the port, False if the address itself is wrong."""
    host, _, port = listen.rpartition(":")
    try:
        address_info = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = address_info[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, ValueError, OverflowError) as error:
        return isinstance(error, OSError) and error.errno == errno.EADDRINUSE
    return True  # free now, but it was in use a moment ago


def channel(
    address: str,
    *,
    secret: str = "",
    root_pem: bytes | None = None,
    token: str = "",
    target_name: str = "",
) -> grpc.aio.Channel:
    """Return a channel that reconnects fast and sends the `secret`.

    root_pem: certificate; with it the channel is TLS and trusts that certificate alone.
    token: access token of a joined node, with TLS alone.
    target_name: name in the certificate, if it is not the address.
    """
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
    """Make a unary call; retry temporary errors until `patience_s` has passed.

    Raise the BanyanError of the answer's status. A missed deadline is not retried.
    """
    end = time.monotonic() + patience_s
    delay_s = 0.05
    while True:
        try:
            return await method(request, timeout=deadline_s, metadata=tuple(metadata))
        except grpc.RpcError as error:
            failure = error_of(error, _name(method))
            temporary = isinstance(failure, TemporaryError)
            retriable = temporary and not isinstance(failure, DeadlineMissed)
            if not retriable or time.monotonic() + delay_s > end:
                raise failure from None
        await asyncio.sleep(delay_s)
        delay_s = min(2 * delay_s, 1.0)


def _name(method: Any) -> str:
    raw = getattr(method, "_method", b"call")
    return raw.decode() if isinstance(raw, bytes) else str(raw)
