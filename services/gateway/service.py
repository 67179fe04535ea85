"""Wires the gateway, once, by hand: store, log, drivers, the plain port, and the TLS port where nodes may join."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
import grpc.aio

from banyan.errors import BanyanError
from banyan.v1 import gateway_service_pb2 as pb
from banyan.v1.gateway_service_pb2_grpc import add_GatewayServiceServicer_to_server
from services.chassis.messaging import assignments
from services.chassis.messaging.bus import Bus
from services.chassis.rpc import rpc
from services.gateway.clients.events import BusLog
from services.gateway.clients.learners import RpcLearners
from services.gateway.clients.treestore import RpcStore
from services.gateway.join import slots, tls
from services.gateway.join.admission import Admission, Door
from services.gateway.join.proxy import Proxy
from services.gateway.runs.drivers import Drivers
from services.gateway.server import Gateway, JoinPort
from services.gateway.settings import Settings

SERVICE = pb.DESCRIPTOR.services_by_name["GatewayService"].full_name
# of a message at the join port: a quarter million ids of segments; blobs come in pieces of a MiB
_STRANGERS_BYTES = 8 << 20


@dataclass
class Running:
    """A gateway that serves."""

    fleet: Drivers
    address: str
    join_address: str  # empty without a join port


@contextlib.asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Running]:
    """Serves until the block is left; the drivers run in `Running.fleet.run()`."""
    async with contextlib.AsyncExitStack() as stack:
        channel = rpc.channel(settings.store, secret=settings.secret)
        stack.push_async_callback(channel.close, None)
        store = RpcStore(channel)
        epoch = await store.take_epoch(f"{socket.gethostname()}-{os.getpid()}")
        bus = await Bus.connect(settings.nats, "gateway", creds=settings.nats_creds)
        stack.push_async_callback(bus.close)
        await bus.ensure_streams()
        fleet = Drivers(store, BusLog(bus), RpcLearners(store, settings.secret), epoch)
        door = Door(store, settings.state)
        admission = Admission(
            store, settings.state, settings.join_nats, lambda run_id: assignments.queue(bus, run_id)
        )
        join = await _serve_join(
            settings, Proxy(door, admission, store, channel, settings.secret), stack
        )
        gateway = Gateway(store, fleet, door, admission, join, settings.state)
        server = await rpc.serve(
            settings.listen,
            [lambda s: add_GatewayServiceServicer_to_server(gateway, s)],
            [SERVICE],
            secret=settings.secret,
            secret_file=settings.secret_file,
            liveness=fleet.liveness,
        )
        stack.push_async_callback(server.stop, 1.0)
        yield Running(fleet, server.address, join.address if join else "")


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
        most_bytes=_STRANGERS_BYTES,
        most_calls=slots.STREAMS,
    )
    stack.push_async_callback(server.stop, 1.0)
    return JoinPort(settings.join_address or reachable(server.address), identity.fingerprint)


def reachable(address: str) -> str:
    """The address under which other hosts reach a socket that listens on all of this host's addresses."""
    host, port = address.rsplit(":", 1)
    if host not in ("0.0.0.0", "[::]", ""):
        return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        # an address for documentation: nothing is sent, only a route is chosen
        probe.connect(("192.0.2.1", 9))
        return f"{probe.getsockname()[0]}:{port}"
    return f"{socket.gethostname()}:{port}"


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Serves and drives until `stop` is set. Raises what ends a driver for good, such as a newer gateway."""
    async with serving(settings) as running:
        driving = asyncio.create_task(running.fleet.run())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([driving, stopping], return_when=asyncio.FIRST_COMPLETED)
            if driving.done():
                driving.result()
        finally:
            stopping.cancel()
            driving.cancel()
            with contextlib.suppress(asyncio.CancelledError, BanyanError):
                await driving
