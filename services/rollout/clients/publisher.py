"""Publication of a node's events, each until the broker has acknowledged it.

Events that no one waits for rest up to two seconds, so that leaves that end one by one become one
message: each message costs the store a transaction and the verifier a turn, on the cores that also
sample (ADR 034). The end of a tree, or a wait for an answer, sends them at once.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from banyan.errors import DeadlineMissed
from services.chassis.rpc.health import Pulse
from services.rollout.clients import away, messages
from services.rollout.clients.away import Away
from services.rollout.clients.messages import Event
from services.rollout.ports import Log
from services.rollout.timeouts import first

log = logging.getLogger(__name__)

_MOST_EVENTS = 4096  # then the engine's segments wait: a broker that is away is back-pressure
_AT_ONCE = 256
_TRY_S = 30.0
_REST_S = 2.0
_SEND_S = 120.0  # a try, and a rest before it


class Publisher:
    """A bounded queue of events.

    on_away: called after each try at which the broker took nothing.
    """

    def __init__(self, bus: Log, on_away: Away = away.ignore) -> None:
        self._bus, self._on_away = bus, on_away
        self.pulse = Pulse("sending")
        self._queue: asyncio.Queue[tuple[Event, asyncio.Event | None]] = asyncio.Queue(_MOST_EVENTS)
        self._due = asyncio.Event()
        self._unsent = 0

    async def put(self, event: Event, done: asyncio.Event | None = None) -> None:
        """Queue an event.

        done: set once the broker has acknowledged the event.
        """
        if self._queue.qsize() >= _AT_ONCE:
            self._due.set()
        await self._queue.put((event, done))
        self._unsent += 1

    def flush_soon(self) -> None:
        """End the rest of the queued events."""
        if self._unsent:
            self._due.set()

    async def flush(self, deadline_s: float) -> None:
        """Send the queued events and wait for their acknowledgement. Raises DeadlineMissed."""
        self.flush_soon()
        try:
            async with asyncio.timeout(deadline_s):
                await self._queue.join()
        except TimeoutError:
            raise DeadlineMissed(
                f"{self._queue.qsize()} events were not sent within {deadline_s:.0f} s"
            ) from None

    async def flush_if_possible(self, deadline_s: float) -> None:
        """Send the queued events; give up at the deadline."""
        with contextlib.suppress(DeadlineMissed):
            await self.flush(deadline_s)

    async def run(self) -> None:
        """Send until cancelled.

        Queued events go out together, and the broker acknowledges them before the next do.
        """
        while True:
            self.pulse.rest()
            batch = [await self._queue.get()]
            self.pulse.beat("a rest", _SEND_S)
            await first(self._due, _REST_S)
            while len(batch) < _AT_ONCE and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            self._unsent -= len(batch)
            if not self._unsent:
                self._due.clear()
            dones = {id(event): done for event, done in batch}
            sends = []
            for merged, events in messages.merged([event for event, _ in batch]):
                sends.append(self._send(merged, [dones[id(event)] for event in events]))
            await asyncio.gather(*sends)

    async def _send(self, event: Event, dones: Sequence[asyncio.Event | None]) -> None:
        await self._publish(event)
        for done in dones:
            if done is not None:
                done.set()
            self._queue.task_done()

    async def _publish(self, event: Event) -> None:
        while True:
            self.pulse.beat("a try", _SEND_S)  # a broker that is away is no hang
            try:
                await self._bus.publish(
                    event.subject,
                    event.message,
                    event.msg_id,
                    traceparent=event.traceparent,
                    deadline_s=_TRY_S,
                )
            except DeadlineMissed as error:
                log.warning("%s; trying on", error)
                self._on_away()
            else:
                return
