"""What the store does by itself: looks at deadlines, notices a log that was lost, and purges what everybody has."""

import asyncio
import logging

import nats.errors
from nats.js.errors import Error as JetStreamError

from banyan.errors import TemporaryError
from services.chassis import subjects
from services.chassis.bus import Bus
from services.treestore import deadlines, meta
from services.treestore.consumer import tell
from services.treestore.context import Context
from services.treestore.outbox import Outbox

log = logging.getLogger(__name__)
_BEAT_MS = 5_000
_FLOOR = "lineage_floor"


class Keeper:
    """Two loops: `watch` over the database, `sweep` over the log."""

    def __init__(self, context: Context, bus: Bus, outbox: Outbox) -> None:
        self._context, self._bus, self._outbox = context, bus, outbox
        self._beaten_ms = 0

    async def watch(self) -> None:
        """Looks at the deadlines for ever."""
        while True:
            await asyncio.sleep(self._context.settings.tick_ms / 1000)
            try:
                await self.look()
            except TemporaryError as error:
                log.warning("cannot look at deadlines: %s", error)

    async def look(self) -> None:
        """One look; writes only if something is due."""
        now, settings, database = self._context.now(), self._context.settings, self._context.database
        if await database.read(lambda c: deadlines.due(c, now, settings)):
            tell(self._context, await database.write(lambda c: deadlines.look(c, now, settings)))
            self._context.ring()
        if now - self._beaten_ms >= _BEAT_MS:
            await database.write(lambda c: deadlines.beat(c, now))
            self._beaten_ms = now

    async def sweep(self) -> None:
        """Checks and purges the log for ever."""
        settings = self._context.settings
        while True:
            await asyncio.sleep(min(5.0, settings.purge_s))
            try:
                await self.check_log()
                await self.purge()
            except (TimeoutError, nats.errors.Error, JetStreamError, TemporaryError) as error:
                log.debug("cannot look after the log now: %s", error)

    async def check_log(self) -> bool:
        """Whether the log lost its messages since the last look; if so, what was in it is queued again."""
        database = self._context.database
        floor = max(await self._bus.ack_floors(subjects.LINEAGE), default=0)
        known = await database.read(lambda c: meta.read_int(c, _FLOOR))
        if floor == known:
            return False
        await database.write(lambda c: meta.put(c, _FLOOR, floor))
        if floor > known:
            return False
        log.warning("the log was lost (it is at %d, it was at %d); queueing again what was in it", floor, known)
        now, settings = self._context.now(), self._context.settings
        tell(self._context, await database.write(lambda c: deadlines.broker_lost(c, now, settings)))
        return True

    async def purge(self) -> None:
        """Removes what all durable consumers have, less a margin; a stream without any keeps its newest messages."""
        margin = self._context.settings.purge_margin
        for stream in (subjects.LINEAGE, subjects.TRAIN, subjects.DEAD):
            floors = await self._bus.ack_floors(stream)
            reached = min(floors) if floors else self._outbox.published.get(stream.lower(), 0)
            if reached > margin:
                await self._bus.purge_below(stream, reached - margin + 1)
