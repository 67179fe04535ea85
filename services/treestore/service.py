"""The treestore, wired: database, bus, loops and servers. Tests host it in their own process in the
same way.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from banyan.v1.runstore_service_pb2_grpc import add_RunStoreServiceServicer_to_server
from banyan.v1.treestore_service_pb2_grpc import add_TreeStoreServiceServicer_to_server
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.consumer import Consumer
from services.chassis.process.process import first_of
from services.chassis.rpc import rpc
from services.treestore.api.run_service import RunStoreService
from services.treestore.api.tree_service import TreeStoreService
from services.treestore.lifecycle import effects
from services.treestore.loops import deadlines
from services.treestore.loops.dead_letters import DeadLetters
from services.treestore.loops.ingester import Ingester
from services.treestore.loops.levels import Levels
from services.treestore.loops.maintenance import Maintenance
from services.treestore.loops.outbox import Outbox
from services.treestore.storage import store_metadata
from services.treestore.storage.clock import StoreClock
from services.treestore.storage.database import Database, without_password
from services.treestore.storage.settings import Settings
from services.treestore.unit_of_work.context import Context

log = logging.getLogger(__name__)
NAMES = ("banyan.v1.TreeStoreService", "banyan.v1.RunStoreService")
DURABLE = "treestore"
_INGEST_REST_S = 0.004  # what a node says of one end comes within that, and is one transaction
_LETTERS = 16
_KINDS = tuple(kind for kind in subjects.LINEAGE_KINDS if kind != "closed")  # which it publishes


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Run until `stop` is set, or a loop fails; `stop` ends the wait for the broker as well."""
    await first_of(stop.wait(), _serve(settings))


async def _serve(settings: Settings) -> None:
    async with running(settings) as (server, loops):
        log.info(
            "serving on %s, database %s",
            server.address,
            without_password(str(settings.database_url)),
        )
        await (loops if loops is not None else asyncio.Event().wait())


@contextlib.asynccontextmanager
async def running(
    settings: Settings,
) -> AsyncIterator[tuple[rpc.RpcServer, "asyncio.Future[None] | None"]]:
    """Yield the server of a store, and its loops unless it only reads or is offline."""
    if settings.rebuild:
        log.warning(
            "BANYAN_REBUILD: claims that this store never issued are taken from the log;"
            " start it without once that was read"
        )
    database = await asyncio.get_running_loop().run_in_executor(
        None, Database(settings.database_url, read_only=settings.read_only).open
    )
    try:
        context = Context(database, settings, await _clock(database))
        if settings.rebuild and not settings.read_only:
            await database.write(lambda c: effects.doubt(c, context.now()))
        if settings.read_only or settings.offline:
            async with _serving(context) as server:
                yield server, None
        else:
            async with _connected(context) as loops, _serving(context) as server:
                yield server, loops
    finally:
        database.close()


async def _clock(database: Database) -> StoreClock:
    clock = StoreClock(await database.read(lambda c: store_metadata.read_int(c, "alive_ms")))
    if not database.read_only:
        gap = await database.write(lambda c: deadlines.catch_up(c, clock()))
        if gap:
            log.info("the store was down for %.1f s; all deadlines are moved by that", gap / 1000)
    return clock


@contextlib.asynccontextmanager
async def _serving(context: Context) -> AsyncIterator[rpc.RpcServer]:
    lineage, control = TreeStoreService(context), RunStoreService(context)
    server = await rpc.serve(
        context.settings.listen,
        [
            lambda server: add_TreeStoreServiceServicer_to_server(lineage, server),
            lambda server: add_RunStoreServiceServicer_to_server(control, server),
        ],
        NAMES,
        secret=context.settings.secret,
        secret_file=context.settings.secret_file,
        liveness=context.liveness,
    )
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def _connected(context: Context) -> AsyncIterator["asyncio.Future[None]"]:
    settings = context.settings
    bus = await Bus.of(settings, "treestore")
    try:
        await bus.ensure_streams()
        outbox = Outbox(context.database, bus)
        context.wake_outbox = outbox.wake
        maintenance = Maintenance(context, bus, outbox)
        context.forget = maintenance.forget
        await maintenance.check_log()
        events, letters = await _consumers(context, bus)
        ingester, dead = Ingester(context, events), DeadLetters(context, letters)
        context.liveness.add(
            ingester.pulse, dead.pulse, outbox.pulse, maintenance.pulse, maintenance.sweeping
        )
        loops = asyncio.ensure_future(
            first_of(
                ingester.run(),
                dead.run(),
                outbox.run(),
                maintenance.watch(),
                maintenance.sweep(),
                Levels(context, bus).run(),
                context.database.check(),
                context.database.damaged(),
            )
        )
        try:
            yield loops
        finally:
            loops.cancel()
            try:
                with contextlib.suppress(asyncio.CancelledError):
                    await loops  # raises what ended one of them
            finally:
                for consumer in (events, letters):
                    await consumer.close()
            await outbox.leave()
            await maintenance.leave()
    finally:
        await bus.close()


async def _consumers(context: Context, bus: Bus) -> tuple[Consumer, Consumer]:
    """Return the consumers of events and dead letters.

    A new database reads the log from its beginning: the retained messages build it up again.
    """
    if not await context.database.read(lambda c: store_metadata.read_text(c, "store_id")):
        for stream in (subjects.LINEAGE, subjects.DEAD):
            await bus.delete_consumer(stream, DURABLE)
        await context.database.write(
            lambda c: store_metadata.put(c, "store_id", f"{context.now():x}")
        )
    filters = [subjects.lineage("*", kind) for kind in _KINDS]
    pending = 4 * context.settings.ingest_batch
    events = await bus.consumer(
        subjects.LINEAGE,
        DURABLE,
        filters,
        ack_wait_s=context.settings.ack_wait_s,
        max_ack_pending=pending,
        standing=context.settings.ingest_batch,
        rest_s=_INGEST_REST_S,
    )
    # No filter: letters of all services and the broker's own advisories.
    letters = await bus.consumer(subjects.DEAD, DURABLE, [">"], standing=_LETTERS)
    return events, letters
