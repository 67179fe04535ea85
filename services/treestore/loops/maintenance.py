"""What the store does by itself: looks at deadlines, notices a log that was lost, and purges what everybody has."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator

import nats.errors
from nats.js.errors import Error as JetStreamError
from sqlalchemy import Connection

from banyan.errors import TemporaryError
from services.chassis.messaging import object_store, subjects
from services.chassis.messaging.bus import Bus
from services.chassis.rpc.health import Pulse
from services.treestore.control import runs
from services.treestore.loops import deadlines
from services.treestore.loops.ingester import tell
from services.treestore.loops.outbox import Outbox
from services.treestore.storage import store_metadata
from services.treestore.unit_of_work.context import Context

log = logging.getLogger(__name__)
_BEAT_MS = 5_000
_LEAVE_S = 2.0
_LOOK_S = 180.0  # a read and two writes behind those of others, on a disk or a database that hangs for a minute
_SWEEP_S = (
    180.0  # as much, and some requests to the broker, each with its own deadline of a few seconds
)
_CHECK_S = 5.0  # between looks for a log that was lost
_CROWDED = (
    1 / 16
)  # of what LINEAGE may hold: it is purged at the next look then, without waiting for its time
_FLOOR, _BORN = "lineage_floor", "lineage_born"


class Maintenance:
    """Two loops: `watch` over the database, `sweep` over the log."""

    def __init__(self, context: Context, bus: Bus, outbox: Outbox) -> None:
        self._context, self._bus, self._outbox = context, bus, outbox
        self._beaten_ms = 0
        self._held = 0  # bytes of LINEAGE at the last look
        self.pulse = Pulse(
            "deadlines"
        )  # of the database, too: each look reads, and every fifth writes
        self.sweeping = Pulse("log")  # a log that nobody purges fills, and takes nothing more

    async def watch(self) -> None:
        """Looks at the deadlines for ever."""
        while True:
            self.pulse.beat("a look", _LOOK_S)
            await asyncio.sleep(self._context.settings.tick_ms / 1000)
            try:
                await self.look()
            except TemporaryError as error:
                log.warning("cannot look at deadlines: %s", error)

    async def look(self) -> None:
        """One look; writes only if something is due."""
        now, settings, database = (
            self._context.now(),
            self._context.settings,
            self._context.database,
        )
        if await database.read(lambda c: deadlines.due(c, now, settings)):
            tell(self._context, await database.write(lambda c: deadlines.look(c, now, settings)))
            self._context.ring()
        if now - self._beaten_ms >= _BEAT_MS:
            await database.write(lambda c: deadlines.beat(c, now))
            self._beaten_ms = now

    async def sweep(self) -> None:
        """Checks and purges the log for ever."""
        settings = self._context.settings
        looks = max(1, round(settings.purge_s / _CHECK_S))  # at the log, until it is purged
        for look in itertools.count(1):
            self.sweeping.beat("a look", _SWEEP_S)
            await asyncio.sleep(min(_CHECK_S, settings.purge_s))
            try:
                await self.check_log()
                if look % looks == 0 or self._held > _CROWDED * subjects.most_bytes(
                    subjects.LINEAGE
                ):
                    await self._clear()
            except (TimeoutError, nats.errors.Error, JetStreamError, TemporaryError) as error:
                log.debug("cannot look after the log now: %s", error)

    async def _clear(self) -> None:
        for what, work in (
            ("a purge", self.purge),
            ("queues", self.clear_growth),
            ("weights", self.clear_weights),
        ):
            self.sweeping.beat(what, _SWEEP_S)
            await work()

    async def leave(self) -> None:
        """The last look at what is left of runs that are over: with the last one the whole system often ends."""
        with contextlib.suppress(TimeoutError, nats.errors.Error, JetStreamError, TemporaryError):
            async with asyncio.timeout(_LEAVE_S):
                await self.clear_weights()

    async def check_log(self) -> bool:
        """Whether the log lost its messages since the last look; if so, what was in it is due again."""
        state = await self._bus.state(subjects.LINEAGE)
        born, self._held = state.born, state.bytes
        floor = max((await self._bus.ack_floors(subjects.LINEAGE)).values(), default=0)
        now, database = self._context.now(), self._context.database
        if await database.read(_known_log) == (born, floor):
            return False
        lost = await database.write(lambda c: _note_log(c, born, floor, now))
        if lost:
            log.warning(
                "the log was lost (it was made at %s, it is at %d); what was in it is queued again",
                born,
                floor,
            )
        return lost

    async def purge(self) -> None:
        """Removes what all durable consumers have, less a margin, unless the stream is half full; of TRAIN, which has none,
        all but the newest messages."""
        for stream in (subjects.LINEAGE, subjects.TRAIN, subjects.DEAD):
            floors = (await self._bus.ack_floors(stream)).values()
            if not floors and stream != subjects.TRAIN:
                continue  # its consumers are not made again yet; nobody has anything
            full = (await self._bus.state(stream)).bytes > subjects.most_bytes(stream) / 2
            margin = (
                self._context.settings.purge_margin if stream == subjects.TRAIN or not full else 0
            )
            reached = min(floors) if floors else self._outbox.published.get(stream.lower(), 0)
            if reached > margin:
                await self._bus.purge_below(stream, reached - margin + 1)

    async def clear_growth(self) -> None:
        """Takes away what is left of runs that are over: their assignments and their queue's consumer."""
        durables = await self._bus.ack_floors(subjects.GROWTH)
        names = [*durables, *await self._bus.subjects_of(subjects.GROWTH)]
        for run_id in {run_id for name in names if (run_id := subjects.growth_run(name))}:
            self.sweeping.beat(f"the queue of run {run_id}", _SWEEP_S)
            async with self._if_over(run_id) as over:
                if over:
                    await self._bus.purge_subject(subjects.GROWTH, subjects.growth(run_id))
                if over and subjects.growth_durable(run_id) in durables:
                    await self._bus.delete_consumer(
                        subjects.GROWTH, subjects.growth_durable(run_id)
                    )

    @contextlib.asynccontextmanager
    async def _if_over(self, run_id: str) -> AsyncIterator[bool]:
        """Whether a run is over; inside the block it stays so: taken back meanwhile, it would lose what it made anew."""
        async with self._context.clearing:
            yield await self._context.database.read(lambda c: runs.over(c, run_id))

    async def forget(self, run_id: str) -> None:
        """Takes away all that the broker holds of a run: messages, consumer, weights. Raises TemporaryError."""
        try:
            for kind in subjects.LINEAGE_KINDS:
                await self._bus.purge_subject(subjects.LINEAGE, subjects.lineage(run_id, kind))
            await self._bus.purge_subject(subjects.TRAIN, subjects.train(run_id, "*"))
            await self._bus.purge_subject(subjects.GROWTH, subjects.growth(run_id))
            await self._bus.delete_consumer(subjects.GROWTH, subjects.growth_durable(run_id))
            await object_store.delete(self._bus.client, subjects.weights_bucket(run_id))
        except (TimeoutError, nats.errors.Error, JetStreamError) as error:
            message = f"the broker cannot forget run {run_id} now: {error or type(error).__name__}; nothing is lost, try again"
            raise TemporaryError(message) from None

    async def clear_weights(self) -> None:
        """Removes the object stores that the weights of runs went out through which are over."""
        for run_id in {
            subjects.weights_run(name) for name in await object_store.names(self._bus.client)
        } - {""}:
            self.sweeping.beat(f"the weights of run {run_id}", _SWEEP_S)
            async with self._if_over(run_id) as over:
                if over:
                    await object_store.delete(self._bus.client, subjects.weights_bucket(run_id))


def _known_log(connection: Connection) -> tuple[str, int]:
    return store_metadata.read_text(connection, _BORN), store_metadata.read_int(connection, _FLOOR)


def _note_log(connection: Connection, born: str, floor: int, now_ms: int) -> bool:
    """Keeps where the log is. If it is another one than before, or behind, all that it held is due, in one transaction."""
    known, reached = _known_log(connection)
    store_metadata.put(connection, _BORN, born)
    store_metadata.put(connection, _FLOOR, floor)
    lost = floor < reached or known not in ("", born)
    if lost:
        deadlines.broker_lost(connection, now_ms)
    return lost
