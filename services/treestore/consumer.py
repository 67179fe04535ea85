"""Events in: the log into the database, many messages a transaction, acknowledged only after the commit."""

import asyncio
import logging
import time
from collections.abc import Sequence

from banyan.errors import BanyanError, InvalidInput, TemporaryError
from banyan.v1 import tree_pb2
from services.chassis import subjects, telemetry
from services.treestore import dead
from services.treestore.book import Book
from services.treestore.context import Context
from services.treestore.flush import flush
from services.treestore.ingest import Item, Outcome, bury_item, ingest
from services.treestore.ports import Message, Source

log = logging.getLogger(__name__)
_FETCH_S = 5.0
_PAUSE_S = 1.0


class Ingester:
    """Pulls LINEAGE and stores it."""

    def __init__(self, context: Context, source: Source) -> None:
        self._context, self._source = context, source

    async def run(self) -> None:
        """Ingests for ever. What the database cannot take now is not acknowledged and comes again."""
        while True:
            deliveries = await self._source.fetch(self._context.settings.ingest_batch, _FETCH_S)
            if deliveries and not await self.store(deliveries):
                await asyncio.sleep(_PAUSE_S)

    async def store(self, deliveries: Sequence[Message]) -> bool:
        """Stores and acknowledges; False if the database takes nothing for now."""
        items = [Item(d.subject, d.data, d.sequence, d.attempts) for d in deliveries]
        try:
            await self._together_or_alone(items)
        except TemporaryError as error:
            log.warning("cannot store %d messages: %s", len(items), error)
            return False
        for delivery in deliveries:
            await delivery.ack()
        return True

    async def _together_or_alone(self, items: Sequence[Item]) -> None:
        try:
            await self._transact(items)
        except BanyanError:
            raise
        except Exception:
            log.exception("an ingest of %d messages failed; trying each alone", len(items))
            await self._one_by_one(items)

    async def _transact(self, items: Sequence[Item]) -> None:
        begun, clock = time.time_ns(), time.monotonic()
        now, settings = self._context.now(), self._context.settings
        outcome = await self._context.database.write(lambda c: ingest(c, items, now, settings))
        tell(self._context, outcome)
        telemetry.observe("banyan.ingest.duration", time.monotonic() - clock)
        for tree_id, traceparent in outcome.traceparents.items():
            if traceparent:
                span = telemetry.start("treestore.ingest", traceparent, start_ns=begun, banyan_tree=tree_id.hex())
                span.set(banyan_events=len(items))
                span.end()

    async def _one_by_one(self, items: Sequence[Item]) -> None:
        """One message that breaks a rule of the database must not hold up the rest."""
        for item in items:
            try:
                await self._transact([item])
            except BanyanError:
                raise
            except Exception as error:
                await self._bury(item, f"{type(error).__name__}: {error}")

    async def _bury(self, item: Item, reason: str) -> None:
        book = Book(self._context.now(), self._context.settings)
        bury_item(book, item, reason.splitlines()[0])
        await self._context.write(lambda c: flush(c, book))


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

    async def run(self) -> None:
        """Keeps letters for ever."""
        while True:
            deliveries = await self._source.fetch(64, _FETCH_S)
            if deliveries and not await self.store(deliveries):
                await asyncio.sleep(_PAUSE_S)

    async def store(self, deliveries: Sequence[Message]) -> bool:
        """Stores and acknowledges; False if the database takes nothing for now."""
        letters = []
        for delivery in deliveries:
            try:
                letters.append(
                    dead.letter_of(
                        Item(delivery.subject, delivery.data, delivery.sequence, delivery.attempts, subjects.DEAD)
                    )
                )
            except InvalidInput as error:  # a letter about a letter would go round for ever
                log.error("a message on %s is no dead letter: %s", delivery.subject, error)
        now = self._context.now()
        try:
            await self._context.database.write(lambda c: dead.store(c, letters, now))
        except TemporaryError as error:
            log.warning("cannot store %d dead letters: %s", len(letters), error)
            return False
        for delivery in deliveries:
            await delivery.ack()
        return True
