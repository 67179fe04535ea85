"""The loop that keeps the letters of the DEAD stream as rows."""

import asyncio
import logging
from collections.abc import Sequence

from banyan.errors import InvalidInput, TemporaryError
from banyan.v1 import events_pb2
from services.chassis.messaging import subjects
from services.chassis.rpc.health import Pulse
from services.treestore.ingest import dead_letters
from services.treestore.ingest.item import Item
from services.treestore.loops.database_errors import is_about_database
from services.treestore.loops.ingester import FETCH_S, INGEST_S, PAUSE_S
from services.treestore.loops.ports import Message, Source
from services.treestore.storage import faults
from services.treestore.unit_of_work.context import Context

log = logging.getLogger(__name__)
_BATCH = 64


class DeadLetters:
    """The consumer of DEAD."""

    def __init__(self, context: Context, source: Source) -> None:
        self._context = context
        self._source = source
        self.pulse = Pulse("dead letters")

    async def run(self) -> None:
        """Store letters until cancelled."""
        while True:
            self.pulse.beat("a fetch", INGEST_S)
            deliveries = await self._source.fetch(_BATCH, FETCH_S)
            if deliveries and not await self.store(deliveries):
                await asyncio.sleep(PAUSE_S)

    async def store(self, deliveries: Sequence[Message]) -> bool:
        """Store and acknowledge letters; return False if some were not stored, and come again."""
        letters = [_letter_of(delivery) for delivery in deliveries]
        try:
            done = await self._store_together_or_alone(letters)
        except TemporaryError as error:
            log.warning("cannot store %d dead letters: %s", len(letters), error)
            return False
        for delivery, kept in zip(deliveries, done, strict=True):
            if kept:
                await delivery.ack()
        return all(done)

    async def _store_together_or_alone(
        self, letters: Sequence[events_pb2.DeadLetter | None]
    ) -> list[bool]:
        """Return for each letter whether it may be acknowledged.

        Raises TemporaryError if the database takes nothing.
        """
        try:
            await self._write([letter for letter in letters if letter is not None])
        except faults.StoreDamaged:
            raise
        except Exception as error:  # one bad letter or a defect of ours must not stop the others
            if is_about_database(error):
                raise
            log.exception(
                "%d dead letters cannot be stored together; trying each alone", len(letters)
            )
            return [letter is None or await self._store_alone(letter) for letter in letters]
        return [True] * len(letters)

    async def _store_alone(self, letter: events_pb2.DeadLetter) -> bool:
        """Store a letter, or let it go if no row can hold it: a letter about a letter would
        circulate endlessly.

        Returns False if the database fails on it for no fault of its data: it comes again.
        """
        name = f"the letter of {letter.service} about {letter.stream} #{letter.sequence}"
        try:
            await self._write([letter])
        except faults.StoreDamaged:
            raise
        except Exception as error:  # a letter that no row can hold must not hold up the rest
            if is_about_database(error):
                raise
            if isinstance(error, TemporaryError):
                log.warning("cannot store %s: %s", name, error)
                return False
            log.exception("no row can hold %s", name)
        return True

    async def _write(self, letters: Sequence[events_pb2.DeadLetter]) -> None:
        self.pulse.beat("a transaction", INGEST_S)
        now, settings = self._context.now(), self._context.settings
        await self._context.database.write(lambda c: dead_letters.store(c, letters, now, settings))


def _letter_of(delivery: Message) -> events_pb2.DeadLetter | None:
    """Return the letter of a message, or None after logging that it is none: a letter about it
    would circulate endlessly.
    """
    item = Item(
        delivery.subject,
        delivery.data,
        delivery.sequence,
        attempts=delivery.attempts,
        stream=subjects.DEAD,
    )
    try:
        return dead_letters.letter_of(item)
    except InvalidInput as error:
        log.error("a message on %s is no dead letter: %s", delivery.subject, error)
        return None
