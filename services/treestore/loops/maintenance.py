"""Maintenance: deadlines, a lost log, and the purge of messages that all consumers have."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator

import nats.errors
from nats.js.errors import Error as JetStreamError
from sqlalchemy import Connection

from banyan.errors import TemporaryError
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.objects import object_store
from services.chassis.rpc.health import Pulse
from services.treestore.control import runs
from services.treestore.loops import deadlines
from services.treestore.loops.outbox import Outbox
from services.treestore.loops.outcomes import publish_outcome
from services.treestore.storage import store_metadata
from services.treestore.unit_of_work.context import Context

log = logging.getLogger(__name__)
_BEAT_MS = 5_000
_LEAVE_S = 2.0
_WATCH_S = (
    180.0  # a read and two writes behind others, on a disk or database that hangs for a minute
)
_SWEEP_S = 180.0  # as much, and some requests to the broker with deadlines of a few seconds
_CHECK_S = 5.0  # between checks for a lost log
_CROWDED = 1 / 16  # of the capacity of LINEAGE: above it the next check purges at once
_FLOOR, _BORN = "lineage_floor", "lineage_born"
_BROKER_ERRORS = (TimeoutError, nats.errors.Error, JetStreamError)


class Maintenance:
    """Two loops: `watch` over the database, `sweep` over the log.

    pulse: pulse of `watch`, and of the database: each turn reads, and every fifth writes
    sweeping: pulse of `sweep`: a log that is not purged fills, and takes nothing more
    """

    def __init__(self, context: Context, bus: Bus, outbox: Outbox) -> None:
        self._context = context
        self._bus = bus
        self._outbox = outbox
        self._alive_ms = 0  # when it was recorded
        self._log_bytes = 0  # of LINEAGE, at the last check
        self.pulse = Pulse("deadlines")
        self.sweeping = Pulse("log")

    async def watch(self) -> None:
        """Reconcile deadlines until cancelled."""
        while True:
            self.pulse.beat("a look", _WATCH_S)
            await asyncio.sleep(self._context.settings.tick_ms / 1000)
            try:
                await self.reconcile()
            except TemporaryError as error:
                log.warning("cannot look at deadlines: %s", error)

    async def reconcile(self) -> None:
        """Do what is due; write only if something is."""
        context, settings = self._context, self._context.settings
        now, database = context.now(), context.database
        if await database.read(lambda c: deadlines.is_due(c, now, settings)):
            outcome = await database.write(lambda c: deadlines.reconcile(c, now, settings))
            publish_outcome(context, outcome)
            context.wake_outbox()
        if now - self._alive_ms >= _BEAT_MS:
            await database.write(lambda c: deadlines.record_alive(c, now))
            self._alive_ms = now

    async def sweep(self) -> None:
        """Check and purge the log until cancelled."""
        purge_s = self._context.settings.purge_s
        checks = max(1, round(purge_s / _CHECK_S))  # from purge to purge
        for check in itertools.count(1):
            self.sweeping.beat("a look", _SWEEP_S)
            await asyncio.sleep(min(_CHECK_S, purge_s))
            try:
                await self.check_log()
                if check % checks == 0 or self._is_crowded():
                    await self._clear()
            except (*_BROKER_ERRORS, TemporaryError) as error:
                log.debug("cannot look after the log now: %s", error)

    def _is_crowded(self) -> bool:
        return self._log_bytes > _CROWDED * subjects.most_bytes(subjects.LINEAGE)

    async def _clear(self) -> None:
        for name, work in (
            ("a purge", self.purge),
            ("queues", self.clear_growth),
            ("weights", self.clear_weights),
        ):
            self.sweeping.beat(name, _SWEEP_S)
            await work()

    async def leave(self) -> None:
        """Clear the rest of runs that are over a last time: with the last run the whole system
        often ends.
        """
        with contextlib.suppress(*_BROKER_ERRORS, TemporaryError):
            async with asyncio.timeout(_LEAVE_S):
                await self.clear_weights()

    async def check_log(self) -> bool:
        """Return True if the log lost its messages since the last check, after making them due
        again.
        """
        state = await self._bus.state(subjects.LINEAGE)
        born, self._log_bytes = state.born, state.bytes
        floor = max((await self._bus.ack_floors(subjects.LINEAGE)).values(), default=0)
        now, database = self._context.now(), self._context.database
        if await database.read(_known_log) == (born, floor):
            return False
        lost = await database.write(lambda c: _record_log(c, born, floor, now))
        if lost:
            log.warning(
                "the log was lost (it was made at %s, it is at %d); what was in it is queued again",
                born,
                floor,
            )
        return lost

    async def purge(self) -> None:
        """Purge the messages that all durable consumers have.

        A margin stays, unless the stream is half full. TRAIN has no durable consumer, so all but
        its newest messages go.
        """
        for stream in (subjects.LINEAGE, subjects.TRAIN, subjects.DEAD):
            floors = (await self._bus.ack_floors(stream)).values()
            if not floors and stream != subjects.TRAIN:
                continue  # its consumers are not made again yet
            full = (await self._bus.state(stream)).bytes > subjects.most_bytes(stream) / 2
            keep = stream == subjects.TRAIN or not full
            margin = self._context.settings.purge_margin if keep else 0
            reached = min(floors) if floors else self._outbox.published.get(stream.lower(), 0)
            if reached > margin:
                await self._bus.purge_below(stream, reached - margin + 1)

    async def clear_growth(self) -> None:
        """Remove the assignments and the queue's consumer of runs that are over."""
        durables = await self._bus.ack_floors(subjects.GROWTH)
        names = [*durables, *await self._bus.subjects_of(subjects.GROWTH)]
        for run_id in {run_id for name in names if (run_id := subjects.growth_run(name))}:
            self.sweeping.beat(f"the queue of run {run_id}", _SWEEP_S)
            durable = subjects.growth_durable(run_id)
            async with self._if_over(run_id) as over:
                if over:
                    await self._bus.purge_subject(subjects.GROWTH, subjects.growth(run_id))
                if over and durable in durables:
                    await self._bus.delete_consumer(subjects.GROWTH, durable)

    async def clear_weights(self) -> None:
        """Remove the object stores that carried the weights of runs that are over."""
        buckets = await object_store.names(self._bus.client)
        for run_id in {subjects.weights_run(name) for name in buckets} - {""}:
            self.sweeping.beat(f"the weights of run {run_id}", _SWEEP_S)
            async with self._if_over(run_id) as over:
                if over:
                    await object_store.delete(self._bus.client, subjects.weights_bucket(run_id))

    @contextlib.asynccontextmanager
    async def _if_over(self, run_id: str) -> AsyncIterator[bool]:
        """Yield True if a run is over; it stays so inside the block.

        A run that is resumed meanwhile would lose what it made anew.
        """
        async with self._context.clearing:
            yield await self._context.database.read(lambda c: runs.is_over(c, run_id))

    async def forget(self, run_id: str) -> None:
        """Remove all that the broker holds of a run: messages, consumer, weights. Raises
        TemporaryError.
        """
        bus = self._bus
        try:
            for kind in subjects.LINEAGE_KINDS:
                await bus.purge_subject(subjects.LINEAGE, subjects.lineage(run_id, kind))
            await bus.purge_subject(subjects.TRAIN, subjects.train(run_id, "*"))
            await bus.purge_subject(subjects.GROWTH, subjects.growth(run_id))
            await bus.delete_consumer(subjects.GROWTH, subjects.growth_durable(run_id))
            await object_store.delete(bus.client, subjects.weights_bucket(run_id))
        except _BROKER_ERRORS as error:
            raise TemporaryError(
                f"the broker cannot forget run {run_id} now: {error or type(error).__name__};"
                " nothing is lost, try again"
            ) from None


def _known_log(connection: Connection) -> tuple[str, int]:
    return store_metadata.read_text(connection, _BORN), store_metadata.read_int(connection, _FLOOR)


def _record_log(connection: Connection, born: str, floor: int, now_ms: int) -> bool:
    """Record which log this is and how far it reaches.

    If it was replaced or went back, make due all that it held, and return True.
    """
    known, reached = _known_log(connection)
    store_metadata.put(connection, _BORN, born)
    store_metadata.put(connection, _FLOOR, floor)
    lost = floor < reached or known not in ("", born)
    if lost:
        deadlines.log_lost(connection, now_ms)
    return lost
