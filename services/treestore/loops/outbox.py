"""The outbox: events that were committed with the state that they report, published in order until
acknowledged.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, select

from banyan.errors import BanyanError, DeadlineMissed, InvalidInput, TemporaryError
from services.chassis.rpc.health import Pulse
from services.treestore.ingest.dead_letters import store as store_letters
from services.treestore.loops.ports import Publisher
from services.treestore.storage import schema
from services.treestore.storage.database import Database
from services.treestore.unit_of_work import dead_letters

log = logging.getLogger(__name__)
_BATCH = 200
_LETTERS_BATCH = 16
_MAX_CONCURRENT = 32  # messages that are published at once
_DEADLINE_S = 30.0
_PAUSE_S = 1.0
_TURN_S = 180.0  # a read, or one publication with its deadline and a transaction
_LETTERS_PAUSE_S = 30.0  # after the log took no letter
_POLL_S = 5.0  # without a wake-up, as one may be lost
_QUIET_S = 0.25  # without a write that published rows could be removed with
_MOST_PUBLISHED = 256  # rows that wait to be removed
_LEAVE_S = 2.0
_IS_LETTER = schema.outbox.c.subject.like("dead.%")
_EVENTS = select(schema.outbox).where(~_IS_LETTER).order_by(schema.outbox.c.n).limit(_BATCH)
_LETTERS = select(schema.outbox).where(_IS_LETTER).order_by(schema.outbox.c.n).limit(_LETTERS_BATCH)
# By id, too: the number of a removed row is given again.
_REMOVE = delete(schema.outbox).where(
    schema.outbox.c.n == bindparam("number"), schema.outbox.c.msg_id == bindparam("id")
)
Rows = Sequence[Row[Any]]


def read_events(connection: Connection) -> Rows:
    """Return the oldest events."""
    return connection.execute(_EVENTS).all()


def read_letters(connection: Connection) -> Rows:
    """Return the oldest dead letters."""
    return connection.execute(_LETTERS).all()


def read_all(connection: Connection) -> tuple[Rows, Rows]:
    """Return the oldest events, and the oldest dead letters."""
    return read_events(connection), read_letters(connection)


def remove(connection: Connection, sent: Mapping[int, str]) -> None:
    """Remove published rows, by number and id."""
    rows = [{"number": number, "id": msg_id} for number, msg_id in sent.items()]
    if rows:
        connection.execute(_REMOVE, rows)


def _nothing(connection: Connection) -> None:
    """Write nothing: a transaction for what goes along with one."""


class Outbox:
    """The publisher of the outbox's rows, woken after each commit that recorded some.

    A published row is removed by the next write of the store, or by one of its own where none
    follows within a moment. After a crash it goes out again, in order and under the same id.

    published: newest sequence by the first token of the subject; it decreases after a wipe of the
        log
    """

    def __init__(self, database: Database, publisher: Publisher) -> None:
        self._database = database
        self._publisher = publisher
        self._wake = asyncio.Event()
        self._wake.set()  # drained at start
        self._letters_after = 0.0
        self._sent: dict[int, str] = {}  # ids of published rows that are there still, by number
        database.rider = self._remove_along
        self.pulse = Pulse("outbox")
        self.published: dict[str, int] = {}

    def wake(self) -> None:
        """Publish soon."""
        self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        self.pulse.beat("the first look", _TURN_S)
        while True:
            woken = await self._woken(_QUIET_S if self._sent else _POLL_S)
            self.pulse.beat("a look", _TURN_S)
            try:
                if self._sent and not woken:
                    await self.remove_published()
                else:
                    await self._publish_all()
            except TemporaryError as error:
                # Published rows stay until they can be removed, and do not go out again.
                log.warning("cannot drain the outbox: %s", error)
                await asyncio.sleep(_PAUSE_S)
                self._wake.set()

    async def _woken(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        woken = self._wake.is_set()
        self._wake.clear()
        return woken

    async def _publish_all(self) -> None:
        sent = dict(self._sent)  # before the read: what is removed meanwhile may be read yet
        events, letters = await self._database.read(read_all)
        unsent = _unsent(events, sent)
        while await self.publish_events(unsent) == len(unsent) and len(events) == _BATCH:
            await self.remove_published()
            unsent = events = await self._database.read(read_events)
        await self.publish_letters(letters)

    def _remove_along(self, connection: Connection) -> Callable[[], None]:
        """Remove published rows with a write, on the writer's thread; forget them once it holds."""
        sent = dict(self._sent)
        remove(connection, sent)

        def forget() -> None:
            for number in sent:
                self._sent.pop(number, None)

        return forget

    async def remove_published(self) -> None:
        """Remove published rows now. Raises TemporaryError."""
        if self._sent:
            await self._database.write(_nothing)

    async def leave(self) -> None:
        """Remove published rows a last time, unless the database is away."""
        with contextlib.suppress(BanyanError, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self.remove_published()

    async def publish_events(self, rows: Rows) -> int:
        """Publish events, and return the number of those that were acknowledged."""
        sent = 0
        try:
            for part in _concurrent(rows):
                self.pulse.beat("publishing", _TURN_S)
                await asyncio.gather(*(self._publish(row) for row in part))
                self._sent.update({row.n: row.msg_id for row in part})
                sent += len(part)
        except DeadlineMissed as missed:
            log.warning("the log takes no events: %s; %d wait", missed, len(rows) - sent)
            self._wake.set()
        if len(self._sent) >= _MOST_PUBLISHED:
            await self.remove_published()
        return sent

    async def publish_letters(self, rows: Rows) -> int:
        """Publish dead letters, and return the number of those that were acknowledged.

        They come after all events and are tried once each: a stream that is full of them must hold
        up nothing. The store has them as rows.
        """
        if time.monotonic() < self._letters_after:
            return 0
        sent: dict[int, str] = {}
        try:
            for row in rows:
                await self._publish(row, 0.0)
                sent[row.n] = row.msg_id
        except DeadlineMissed as missed:
            log.warning("the log takes no dead letters: %s", missed)
            self._letters_after = time.monotonic() + _LETTERS_PAUSE_S
        if sent:
            await self._database.write(lambda c: remove(c, sent))
            self._wake.set()  # there may be more
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
            await self._dead_letter(row, str(error))
            return
        self.published[row.subject.split(".")[0]] = sequence

    async def _dead_letter(self, row: Row[Any], reason: str) -> None:
        """Make a dead letter of an event that the broker will never take: it must not hold up the
        others.
        """
        log.error("dead letter: event for %s: %s", row.subject, reason)
        letter = dead_letters.build(
            stream="OUTBOX",
            subject=row.subject,
            sequence=row.n,
            payload=row.payload,
            reason=reason,
            attempts=1,
        )
        await self._database.write(lambda c: store_letters(c, [letter], 0))


def _unsent(rows: Rows, sent: Mapping[int, str]) -> Rows:
    """Return the rows that are not among those sent."""
    return [row for row in rows if sent.get(row.n) != row.msg_id]


def _concurrent(rows: Rows) -> list[list[Row[Any]]]:
    """Return neighbours that may be published at once: assignments of a run need no order, all else
    does.
    """
    parts: list[list[Row[Any]]] = []
    for row in rows:
        last = parts[-1] if parts else []
        if (
            last
            and len(last) < _MAX_CONCURRENT
            and row.subject.startswith("growth.")
            and row.subject == last[0].subject
        ):
            last.append(row)
        else:
            parts.append([row])
    return parts
