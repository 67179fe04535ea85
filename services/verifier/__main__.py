"""`python -m services.verifier`."""

import asyncio

from banyan.environments import receipts
from services.chassis.messaging.bus import Bus
from services.chassis.process import process
from services.chassis.process import settings as settings_reader
from services.chassis.rpc import rpc
from services.chassis.rpc.health import Liveness
from services.verifier.assembled import scoring_of
from services.verifier.consumer import LeafConsumer
from services.verifier.environments.actions import Actions
from services.verifier.environments.hosts import Hosts
from services.verifier.environments.opened.environments import OpenedEnvironments
from services.verifier.environments.opened.opening import Opening
from services.verifier.environments.opened.runs import GrpcRuns
from services.verifier.environments.runner import Runner
from services.verifier.environments.stepping import Stepper
from services.verifier.groups import GroupConsumer, GroupHandler
from services.verifier.handlers import LeafHandler
from services.verifier.jail.chosen import ChosenJail
from services.verifier.jail.chosen_sessions import ChosenSessions
from services.verifier.publisher import BusPublisher
from services.verifier.sandbox.confinement import folders, kernel
from services.verifier.sandbox.pool import Pool
from services.verifier.server import NAME, VerifierServer, adder
from services.verifier.settings import Settings
from services.verifier.store import GrpcStore


async def run(stop: asyncio.Event) -> None:
    """Run the verifier until `stop`: a server, two consumers, a pool of children."""
    settings = settings_reader.read(Settings)
    # A scorer that runs as the same user must not read this process's memory.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    for left in (folders.MONTY, folders.BATTERY):
        folders.remove_dead(left)
    pool = Pool(settings.limits, width=settings.children, lanes=settings.scorers)
    jail = ChosenJail(settings.state, sandbox=settings.sandbox, width=settings.programs)
    scoring = scoring_of(settings, pool, jail)
    bus = await Bus.of(settings, "verifier")
    channel = rpc.channel(settings.store, secret=settings.secret)
    store = GrpcStore(channel)
    key = receipts.key_of(settings.secret)
    sessions = ChosenSessions(settings.state, key, width=settings.programs)
    hosts = Hosts(pool)
    actions = Actions(store, key, sessions, hosts)
    runner = Runner(sessions, hosts)
    opened = OpenedEnvironments(Opening(GrpcRuns(channel), runner), Stepper(runner))
    liveness = Liveness()
    server = await rpc.serve(
        settings.listen,
        [adder(VerifierServer(scoring, settings.concurrency, actions, opened))],
        [NAME],
        secret=settings.secret,
        secret_file=settings.secret_file,
        liveness=liveness,
    )
    try:
        await bus.ensure_streams()
        publisher = BusPublisher(bus)
        leaf_handler = LeafHandler(store, publisher, scoring, settings.verifier_id)
        group_handler = GroupHandler(store, publisher, scoring, settings.verifier_id)
        leaves = LeafConsumer(bus, store, leaf_handler, settings.concurrency)
        groups = GroupConsumer(bus, group_handler)
        liveness.add(leaves.pulse, groups.pulse)
        readiness = asyncio.create_task(_update_readiness(server, bus))
        try:
            await asyncio.gather(leaves.run(stop), groups.run(stop))
        finally:
            readiness.cancel()
    finally:
        await server.stop()
        await scoring.close()
        await sessions.close()
        await channel.close(None)
        await bus.close()


async def _update_readiness(server: rpc.RpcServer, bus: Bus) -> None:
    """Keep the server ready while leaves can arrive and scores can be published."""
    while True:
        await server.set_serving(bus.connected)
        await asyncio.sleep(1.0)


if __name__ == "__main__":
    process.main("verifier", run)
