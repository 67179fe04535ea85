"""`python -m services.verifier`."""

import asyncio

from services.chassis.messaging.bus import Bus
from services.chassis.process import process, settings
from services.chassis.rpc import rpc
from services.chassis.rpc.health import Liveness
from services.verifier.consumer import LeafConsumer
from services.verifier.groups import GroupConsumer, GroupHandler
from services.verifier.handlers import LeafHandler
from services.verifier.publisher import BusPublisher
from services.verifier.sandbox.confinement import kernel
from services.verifier.sandbox.pool import Pool
from services.verifier.scoring import Scoring
from services.verifier.server import NAME, VerifierServer, adder
from services.verifier.settings import Settings
from services.verifier.store import GrpcStore


async def run(stop: asyncio.Event) -> None:
    """The verifier until `stop`: one server, one consumer, one pool of children."""
    given = settings.read(Settings)
    kernel.prctl(
        kernel.PR_SET_DUMPABLE, 0
    )  # its memory is not a scorer's to read where both run as one user
    scoring = Scoring(Pool(given.limits, width=given.children, lanes=given.scorers))
    bus = await Bus.connect(given.nats, "verifier", creds=given.nats_creds)
    channel = rpc.channel(given.store, secret=given.secret)
    liveness = Liveness()
    server = await rpc.serve(
        given.listen,
        [adder(VerifierServer(scoring, given.concurrency))],
        [NAME],
        secret=given.secret,
        secret_file=given.secret_file,
        liveness=liveness,
    )
    try:
        await bus.ensure_streams()
        store = GrpcStore(channel)
        publisher = BusPublisher(bus)
        handler = LeafHandler(store, publisher, scoring, given.verifier_id)
        groups = GroupHandler(store, publisher, scoring, given.verifier_id)
        health = asyncio.create_task(_tell_health(server, bus))
        try:
            consumers = (
                LeafConsumer(bus, store, handler, given.concurrency),
                GroupConsumer(bus, groups),
            )
            liveness.add(*(consumer.pulse for consumer in consumers))
            await asyncio.gather(*(consumer.run(stop) for consumer in consumers))
        finally:
            health.cancel()
    finally:
        await server.stop()
        await scoring.close()
        await channel.close(None)
        await bus.close()


async def _tell_health(server: rpc.RpcServer, bus: Bus) -> None:
    """Ready means that leaves can come and scores can go."""
    while True:
        await server.set_serving(bus.connected)
        await asyncio.sleep(1.0)


if __name__ == "__main__":
    process.main("verifier", run)
