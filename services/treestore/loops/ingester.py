"""Events in: the log into the database, many messages a transaction, acknowledged only after the commit."""

import asyncio
import logging
import time
from collections.abc import Sequence

from banyan.errors import InvalidInput, TemporaryError
from banyan.v1 import events_pb2, tree_pb2
from services.chassis.messaging import subjects
from services.chassis.process import telemetry
from services.chassis.rpc.health import Pulse
from services.treestore.ingest import dead_letters
from services.treestore.ingest.transaction import (
    Item,
    Outcome,
    Unfit,
    bury_item,
    give_up_parked,
    ingest,
)
from services.treestore.loops.ports import Message, Source
from services.treestore.storage import faults
from services.treestore.unit_of_work.context import Context
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from services.treestore.unit_of_work.write import flush

log = logging.getLogger(__name__)
_FETCH_S = 5.0
_PAUSE_S = 1.0
_INGEST_S = 180.0  # a transaction behind others on a database that hangs for a minute, which is as long as one may


class Ingester:
    """Pulls LINEAGE and stores it."""

    def __init__(self, context: Context, source: Source) -> None:
        self._context, self._source = context, source
        self.pulse = Pulse("ingest")

    async def run(self) -> None:
        """Ingests for ever. What the database cannot take now is not acknowledged and comes again."""
        while True:
            self.pulse.beat("a fetch", _INGEST_S)
            deliveries = await self._source.fetch(self._context.settings.ingest_batch, _FETCH_S)
            if deliveries and not await self.store(deliveries):
                await asyncio.sleep(_PAUSE_S)

    async def store(self, deliveries: Sequence[Message]) -> bool:
        """Store and acknowledge; False if some were not taken for now, and come again."""
        items = [Item(d.subject, d.data, d.sequence, d.attempts) for d in deliveries]
        try:
            stored = await self._together_or_alone(items)
        except TemporaryError as error:
            log.warning("cannot store %d messages: %s", len(items), error)
            return False
        for delivery, done in zip(deliveries, stored, strict=True):
            if done:
                await delivery.ack()
        return all(stored)

    async def _together_or_alone(self, items: Sequence[Item]) -> list[bool]:
        """Return for each message whether it is stored or buried. Raises TemporaryError if the database takes nothing."""
        try:
            await self._transact(items)
        except faults.StoreDamaged:
            raise
        except Exception as error:
            if _says_nothing_of_them(error):
                raise
            log.exception("an ingest of %d messages failed; trying each alone", len(items))
            return [await self._alone(item) for item in items]
        return [True] * len(items)

    async def _transact(self, items: Sequence[Item]) -> None:
        self.pulse.beat("a transaction", _INGEST_S)
        begun, clock = time.time_ns(), time.monotonic()
        now, settings = self._context.now(), self._context.settings
        outcome = await self._context.database.write(lambda c: ingest(c, items, now, settings))
        tell(self._context, outcome)
        telemetry.observe("banyan.ingest.duration", time.monotonic() - clock)
        for tree_id, traceparent in outcome.traceparents.items():
            if traceparent:
                span = telemetry.start(
                    "treestore.ingest", traceparent, start_ns=begun, banyan_tree=tree_id.hex()
                )
                span.set(banyan_events=len(items))
                span.end()

    async def _alone(self, item: Item) -> bool:
        """Store a message, or bury it if it breaks a rule of the database or our own code: it must not hold up the rest.

        Return False if the database fails on it for no fault of its data: it comes again.
        """
        while True:  # each turn more buries one parked event
            try:
                return await self._try_alone(item)
            except Unfit as error:
                if not await self._bury_parked(error):
                    await self._bury(item, str(error))
                    return True

    async def _try_alone(self, item: Item) -> bool:
        """As `_alone`. Raises Unfit."""
        try:
            await self._transact([item])
        except (faults.StoreDamaged, Unfit):
            raise
        except Exception as error:
            if _says_nothing_of_them(error):
                raise
            if isinstance(error, TemporaryError):
                log.warning("cannot store message %d on %s: %s", item.sequence, item.subject, error)
                return False
            await self._bury(item, f"{type(error).__name__}: {error}")
        return True

    async def _bury_parked(self, error: Unfit) -> bool:
        """Give up an event that was parked; False if it was not, and came with the message itself."""
        log.exception("an event that was parked cannot be stored", exc_info=error)
        now, settings, reason = (
            self._context.now(),
            self._context.settings,
            str(error).splitlines()[0],
        )
        return await self._context.write(
            lambda c: give_up_parked(c, error.event, reason, now, settings)
        )

    async def _bury(self, item: Item, reason: str) -> None:
        book = UnitOfWork(self._context.now(), self._context.settings)
        bury_item(book, item, reason.splitlines()[0])
        await self._context.write(lambda c: flush(c, book))


def _says_nothing_of_them(error: Exception) -> bool:
    """Whether the database is busy, full or away: it would take no message, however good."""
    return isinstance(error, TemporaryError) and error.reason != faults.FAILED


def tell(context: Context, outcome: Outcome) -> None:
    """Wakes waiters and the outbox, and counts."""
    context.notifier.notify(outcome.touched)
    context.notifier.notify(outcome.runs)
    if outcome.told:
        context.ring()
    if outcome.segments:
        telemetry.count("banyan.segments.stored", outcome.segments)
    for reason in outcome.refused:
        telemetry.count("banyan.segments.refused", banyan_reason=reason)
    for state, reason in outcome.ended:
        if state == tree_pb2.TREE_STATE_DROPPED:
            telemetry.count("banyan.trees.dropped", banyan_reason=reason)
        else:
            telemetry.count("banyan.trees.closed")
    if outcome.dead:
        telemetry.count("banyan.dead_letters", outcome.dead)


class DeadLetters:
    """Pulls DEAD and keeps its letters as rows."""

    def __init__(self, context: Context, source: Source) -> None:
        self._context, self._source = context, source
        self.pulse = Pulse("dead letters")

    async def run(self) -> None:
        """Keeps letters for ever."""
        while True:
            self.pulse.beat("a fetch", _INGEST_S)
            deliveries = await self._source.fetch(64, _FETCH_S)
            if deliveries and not await self.store(deliveries):
                await asyncio.sleep(_PAUSE_S)

    async def store(self, deliveries: Sequence[Message]) -> bool:
        """Stores and acknowledges; False if some were not taken for now, and come again."""
        letters = [_letter_of(delivery) for delivery in deliveries]
        try:
            done = await self._together_or_alone(letters)
        except TemporaryError as error:
            log.warning("cannot store %d dead letters: %s", len(letters), error)
            return False
        for delivery, kept in zip(deliveries, done, strict=True):
            if kept:
                await delivery.ack()
        return all(done)

    async def _together_or_alone(
        self, letters: Sequence[events_pb2.DeadLetter | None]
    ) -> list[bool]:
        """Return for each letter whether it is done with. Raises TemporaryError if the database takes nothing."""
        try:
            await self._write([letter for letter in letters if letter is not None])
        except faults.StoreDamaged:
            raise
        except Exception as error:
            if _says_nothing_of_them(error):
                raise
            log.exception(
                "%d dead letters cannot be stored together; trying each alone", len(letters)
            )
            return [letter is None or await self._alone(letter) for letter in letters]
        return [True] * len(letters)

    async def _alone(self, letter: events_pb2.DeadLetter) -> bool:
        """Keep a letter, or let it go if no row can hold it: a letter about a letter would go round for ever.

        Return False if the database fails on it for no fault of its data: it comes again.
        """
        about = f"the letter of {letter.service} about {letter.stream} #{letter.sequence}"
        try:
            await self._write([letter])
        except faults.StoreDamaged:
            raise
        except Exception as error:
            if _says_nothing_of_them(error):
                raise
            if isinstance(error, TemporaryError):
                log.warning("cannot store %s: %s", about, error)
                return False
            log.exception("no row can hold %s", about)
        return True

    async def _write(self, letters: Sequence[events_pb2.DeadLetter]) -> None:
        self.pulse.beat("a transaction", _INGEST_S)
        now, settings = self._context.now(), self._context.settings
        await self._context.database.write(lambda c: dead_letters.store(c, letters, now, settings))


def _letter_of(delivery: Message) -> events_pb2.DeadLetter | None:
    """The letter of a message; None if it is none. Of that only the log tells: a letter about it would go round for ever."""
    item = Item(
        delivery.subject, delivery.data, delivery.sequence, delivery.attempts, subjects.DEAD
    )
    try:
        return dead_letters.letter_of(item)
    except InvalidInput as error:
        log.error("a message on %s is no dead letter: %s", delivery.subject, error)
        return None
