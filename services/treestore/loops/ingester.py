"""The ingest loop: the log into the database, many messages a transaction, acknowledged only after
the commit.
"""

import asyncio
import logging
import time
from collections.abc import Sequence

from banyan.errors import TemporaryError
from services.chassis.process import telemetry
from services.chassis.rpc.health import Pulse
from services.treestore.ingest.dead_letters import dead_letter_item, dead_letter_parked
from services.treestore.ingest.item import Item
from services.treestore.ingest.transaction import Unfit, ingest
from services.treestore.loops.database_errors import is_about_database
from services.treestore.loops.outcomes import publish_outcome
from services.treestore.loops.ports import Message, Source
from services.treestore.storage import faults
from services.treestore.unit_of_work.context import Context
from services.treestore.unit_of_work.unit_of_work import UnitOfWork
from services.treestore.unit_of_work.write import flush

log = logging.getLogger(__name__)
FETCH_S = 5.0
PAUSE_S = 1.0  # after a fetch of which some messages were not stored
INGEST_S = (
    180.0  # a transaction behind others on a database that hangs for a minute, the longest time
)


class Ingester:
    """The consumer of LINEAGE."""

    def __init__(self, context: Context, source: Source) -> None:
        self._context = context
        self._source = source
        self.pulse = Pulse("ingest")

    async def run(self) -> None:
        """Ingest until cancelled; messages that the database cannot take now come again."""
        while True:
            self.pulse.beat("a fetch", INGEST_S)
            deliveries = await self._source.fetch(self._context.settings.ingest_batch, FETCH_S)
            if deliveries and not await self.store(deliveries):
                await asyncio.sleep(PAUSE_S)

    async def store(self, deliveries: Sequence[Message]) -> bool:
        """Store and acknowledge messages; return False if some were not stored, and come again."""
        items = [Item(d.subject, d.data, d.sequence, d.attempts) for d in deliveries]
        try:
            stored = await self._store_together_or_alone(items)
        except TemporaryError as error:
            log.warning("cannot store %d messages: %s", len(items), error)
            return False
        for delivery, done in zip(deliveries, stored, strict=True):
            if done:
                await delivery.ack()
        return all(stored)

    async def _store_together_or_alone(self, items: Sequence[Item]) -> list[bool]:
        """Return for each message whether it is stored or a dead letter.

        Raises TemporaryError if the database takes nothing.
        """
        try:
            await self._transact(items)
        except faults.StoreDamaged:
            raise
        except Exception as error:  # one bad message or a defect of ours must not stop the others
            if is_about_database(error):
                raise
            log.exception("an ingest of %d messages failed; trying each alone", len(items))
            return [await self._store_alone(item) for item in items]
        return [True] * len(items)

    async def _transact(self, items: Sequence[Item]) -> None:
        self.pulse.beat("a transaction", INGEST_S)
        begun_ns, began = time.time_ns(), time.monotonic()
        now, settings = self._context.now(), self._context.settings
        outcome = await self._context.database.write(lambda c: ingest(c, items, now, settings))
        publish_outcome(self._context, outcome)
        telemetry.observe("banyan.ingest.duration", time.monotonic() - began)
        for tree_id, traceparent in outcome.traceparents.items():
            if traceparent:
                span = telemetry.start(
                    "treestore.ingest", traceparent, start_ns=begun_ns, banyan_tree=tree_id.hex()
                )
                span.set(banyan_events=len(items))
                span.end()

    async def _store_alone(self, item: Item) -> bool:
        """Store a message, or make a dead letter of it if it breaks a rule of the database or our
        own code.

        Returns False if the database fails on it for no fault of its data: it comes again.
        """
        while True:  # each further turn makes a dead letter of one parked event
            try:
                return await self._try_alone(item)
            except Unfit as error:
                if not await self._dead_letter_parked(error):
                    await self._dead_letter(item, str(error))
                    return True

    async def _try_alone(self, item: Item) -> bool:
        """Do as `_store_alone`, but raise Unfit for a parked event."""
        try:
            await self._transact([item])
        except (faults.StoreDamaged, Unfit):
            raise
        except Exception as error:  # a defect of ours on this message must not hold up the rest
            if is_about_database(error):
                raise
            if isinstance(error, TemporaryError):
                log.warning("cannot store message %d on %s: %s", item.sequence, item.subject, error)
                return False
            await self._dead_letter(item, f"{type(error).__name__}: {error}")
        return True

    async def _dead_letter_parked(self, error: Unfit) -> bool:
        """Make a dead letter of a parked event; return False if it came with the message itself."""
        log.exception("an event that was parked cannot be stored", exc_info=error)
        now, settings = self._context.now(), self._context.settings
        reason = str(error).splitlines()[0]
        return await self._context.write(
            lambda c: dead_letter_parked(c, error.event, reason, now, settings)
        )

    async def _dead_letter(self, item: Item, reason: str) -> None:
        work = UnitOfWork(self._context.now(), self._context.settings)
        dead_letter_item(work, item, reason.splitlines()[0])
        await self._context.write(lambda c: flush(c, work))
