"""The outbox: events that were committed with the state that they tell of, published in order until acknowledged."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, select

from banyan.errors import DeadlineMissed, InvalidInput, TemporaryError
from banyan.v1 import events_pb2
from services.chassis.rpc.health import Pulse
from services.treestore.ingest import dead_letters
from services.treestore.loops.ports import Publisher
from services.treestore.storage import schema
from services.treestore.storage.database import Database

log = logging.getLogger(__name__)
_BATCH = 200
_DEADLINE_S = 30.0
_PAUSE_S = 1.0
_TURN_S = 180.0  # a look, or what is published at once: its deadline and a transaction
_LETTERS_S = 30.0  # after the log took no letter
_LETTER = schema.outbox.c.subject.like("dead.%")
_WAITING = select(schema.outbox).where(~_LETTER).order_by(schema.outbox.c.n).limit(_BATCH)
_LETTERS = select(schema.outbox).where(_LETTER).order_by(schema.outbox.c.n).limit(16)
_LOOK_S = 5.0  # between looks when nobody rang; covers a ring that was lost


def waiting(connection: Connection) -> list[Row[Any]]:
    """The oldest events."""
    return list(connection.execute(_WAITING))


def letters(connection: Connection) -> list[Row[Any]]:
    """The oldest dead letters."""
    return list(connection.execute(_LETTERS))


def pending(connection: Connection) -> tuple[list[Row[Any]], list[Row[Any]]]:
    """The oldest events, and the oldest dead letters."""
    return waiting(connection), letters(connection)


def done(connection: Connection, numbers: list[int]) -> None:
    """Takes published events out."""
    connection.execute(delete(schema.outbox).where(schema.outbox.c.n.in_(numbers)))


class Outbox:
    """Drains the table; rung after each commit that put something in."""

    def __init__(self, database: Database, publisher: Publisher) -> None:
        self._database, self._publisher = database, publisher
        self._bell = asyncio.Event()
        self._bell.set()  # drained at start
        self._post_after = 0.0
        self.pulse = Pulse("outbox")
        self.published: dict[str, int] = {}  # newest sequence by first word of the subject

    def ring(self) -> None:
        """Says that there is something to publish."""
        self._bell.set()

    async def run(self) -> None:
        """Publishes for ever."""
        self.pulse.beat("the first look", _TURN_S)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._bell.wait()
            self._bell.clear()
            self.pulse.beat("a look", _TURN_S)
            try:
                events, mail = await self._database.read(pending)
                while await self.drain(events) == _BATCH:
                    events = await self._database.read(waiting)
                await self.post(mail)
            except (
                TemporaryError
            ) as error:  # the database; what was published is published again, under the same id
                log.warning("cannot drain the outbox: %s", error)
                await asyncio.sleep(_PAUSE_S)
                self._bell.set()

    async def drain(self, rows: Sequence[Row[Any]]) -> int:
        """Publishes events; how many."""
        sent: list[int] = []
        try:
            for part in _runs(rows):
                self.pulse.beat("publishing", _TURN_S)
                await asyncio.gather(*(self._publish(row) for row in part))
                sent += [row.n for row in part]
        except DeadlineMissed as missed:
            log.warning("the log takes no events: %s; %d wait", missed, len(rows) - len(sent))
            self._bell.set()
        if sent:
            await self._database.write(lambda c: done(c, sent))
        return len(sent)

    async def post(self, rows: Sequence[Row[Any]]) -> int:
        """Publishes dead letters, behind all events and each tried once: a log that is full of them must hold up nothing.
        The store has them as rows. How many went out."""
        if time.monotonic() < self._post_after:
            return 0
        sent: list[int] = []
        try:
            for row in rows:
                await self._publish(row, 0.0)
                sent.append(row.n)
        except DeadlineMissed as missed:
            log.warning("the log takes no dead letters: %s", missed)
            self._post_after = time.monotonic() + _LETTERS_S
        if sent:
            await self._database.write(lambda c: done(c, sent))
            self._bell.set()  # there may be more
        return len(sent)

    async def _publish(self, row: Row[Any], deadline_s: float = _DEADLINE_S) -> None:
        try:
            sequence = await self._publisher.publish_bytes(
                row.subject,
                row.payload,
                row.msg_id,
                traceparent=row.traceparent,
                deadline_s=deadline_s,
            )
        except InvalidInput as error:
            await self._give_up(row, str(error))
            return
        word = row.subject.split(".")[0]
        self.published[word] = sequence  # may go back: a log that was wiped counts from one again

    async def _give_up(self, row: Row[Any], reason: str) -> None:
        """An event that the broker will never take must not hold up those behind it."""
        log.error("dead letter: event for %s: %s", row.subject, reason)
        letter = events_pb2.DeadLetter(
            stream="OUTBOX",
            subject=row.subject,
            sequence=row.n,
            payload=row.payload,
            reason=reason,
            attempts=1,
            service="treestore",
        )
        await self._database.write(lambda c: dead_letters.store(c, [letter], 0))


def _runs(rows: Sequence[Row[Any]]) -> list[list[Row[Any]]]:
    """Neighbours that may be published at once: trees to grow have no order among them, all else does."""
    parts: list[list[Row[Any]]] = []
    for row in rows:
        if (
            parts
            and row.subject.startswith("growth.")
            and row.subject == parts[-1][0].subject
            and len(parts[-1]) < 32
        ):
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts
