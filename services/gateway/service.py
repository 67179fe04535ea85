"""The gateway's composition root: store, log, drivers, plain port, TLS port for joining nodes."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from banyan.errors import BanyanError
from banyan.v1 import gateway_service_pb2 as pb
from banyan.v1.gateway_service_pb2_grpc import add_GatewayServiceServicer_to_server
from services.chassis.messaging import assignments
from services.chassis.messaging.bus import Bus
from services.chassis.process import process
from services.chassis.rpc import rpc
from services.gateway.clients.events import BusLog
from services.gateway.clients.learners import RpcLearners
from services.gateway.clients.treestore import RpcStore
from services.gateway.join import slots, tls
from services.gateway.join.admission import Admission, TokenVerifier
from services.gateway.join.proxy import Proxy
from services.gateway.page.inside import PageHost
from services.gateway.runs.drivers import Drivers
from services.gateway.server import Gateway, JoinPort
from services.gateway.settings import Settings

SERVICE = pb.DESCRIPTOR.services_by_name["GatewayService"].full_name
# Largest message at the join port: a quarter million segment ids. Blobs come in pieces of a MiB.
_JOINED_MAX_BYTES = 8 << 20


@dataclass
class Running:
    """A serving gateway. `join_address` is empty without a join port."""

    drivers: Drivers
    address: str
    join_address: str
    page: PageHost


@contextlib.asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Running]:
    """Serve until the block is left. The caller runs the drivers: `Running.drivers.run()`."""
    async with contextlib.AsyncExitStack() as stack:
        channel = rpc.channel(settings.store, secret=settings.secret)
        stack.push_async_callback(channel.close, None)
        store = RpcStore(channel)
        epoch = await store.take_epoch(f"{socket.gethostname()}-{os.getpid()}")
        bus = await Bus.of(settings, "gateway")
        stack.push_async_callback(bus.close)
        await bus.ensure_streams()
        drivers = Drivers(store, BusLog(bus), RpcLearners(store, settings.secret), epoch)
        tokens = TokenVerifier(store, settings.state)
        admission = Admission(
            store, settings.state, settings.join_nats, lambda run_id: assignments.queue(bus, run_id)
        )
        verifier = rpc.channel(settings.verifier, secret=settings.secret)
        stack.push_async_callback(verifier.close, None)
        proxy = Proxy(
            tokens,
            admission,
            store,
            upstream=channel,
            verifier=verifier,
            secret=settings.secret,
        )
        join = await _serve_join(settings, proxy, stack)
        gateway = Gateway(store, drivers, tokens, admission, join=join, state=settings.state)
        server = await rpc.serve(
            settings.listen,
            [lambda s: add_GatewayServiceServicer_to_server(gateway, s)],
            [SERVICE],
            secret=settings.secret,
            secret_file=settings.secret_file,
            liveness=drivers.liveness,
        )
        stack.push_async_callback(server.stop, 1.0)
        # Behind the plain port: a run that begins does not wait for the page's imports.
        page = PageHost(
            gateway,
            channel,
            bus,
            listen=settings.http_listen,
            hosts=settings.http_hosts,
            free=not settings.http_token,
            secret=settings.secret,
            state=settings.state,
        )
        await page.start(stack)
        yield Running(drivers, server.address, join.address if join else "", page)


async def _serve_join(
    settings: Settings, proxy: Proxy, stack: contextlib.AsyncExitStack
) -> JoinPort | None:
    stack.push_async_callback(proxy.close)
    if not settings.join_listen:
        return None
    identity = tls.identity(settings.state)
    credentials = grpc.ssl_server_credentials([(identity.key.read_bytes(), identity.pem)])
    server = await rpc.serve(
        settings.join_listen,
        [],
        [SERVICE],
        credentials=credentials,
        generic=[proxy],
        most_bytes=_JOINED_MAX_BYTES,
        most_calls=slots.STREAMS,
    )
    stack.push_async_callback(server.stop, 1.0)
    return JoinPort(settings.join_address or reachable(server.address), identity.fingerprint)


def reachable(address: str) -> str:
    """Return the address under which other hosts reach a socket of this host.

    It differs for sockets that listen on all of this host's addresses.
    """
    host, port = address.rsplit(":", 1)
    if host not in ("0.0.0.0", "[::]", ""):
        return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        # A documentation address (RFC 5737): nothing is sent, only a route is chosen.
        probe.connect(("192.0.2.1", 9))
        return f"{probe.getsockname()[0]}:{port}"
    return f"{socket.gethostname()}:{port}"


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Serve and drive until `stop` is set, also while it waits for the store or the log.

    Raise the error that ends all drivers, such as a newer gateway.
    """
    async with contextlib.AsyncExitStack() as stack:
        starting = asyncio.create_task(stack.enter_async_context(serving(settings)))
        stopping = asyncio.create_task(stop.wait())
        stack.push_async_callback(process.cancelled, [starting, stopping])
        # One whose launcher was killed must not serve under an old epoch when the next one comes.
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await _drive(starting.result(), stopping)


async def _drive(running: Running, stopping: "asyncio.Task[bool]") -> None:
    driving = asyncio.create_task(running.drivers.run())
    ends: list[asyncio.Future[Any]] = [driving, stopping, running.page.failure]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for failing in (driving, running.page.failure):
            if failing.done():
                failing.result()
    finally:
        driving.cancel()
        with contextlib.suppress(asyncio.CancelledError, BanyanError):
            await driving
