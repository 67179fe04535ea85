"""Sends a node's events, each until the broker has acknowledged it; those that wait together in few messages.

What nobody waits for rests up to two seconds, so that leaves which end one by one are one message: each costs the store a
transaction and the verifier a turn, on the cores that sample (ADR 034). Who ends a tree, or waits for an answer, hurries.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from banyan.errors import DeadlineMissed
from services.chassis.rpc.health import Pulse
from services.rollout.clients import messages
from services.rollout.clients.messages import Event
from services.rollout.ports import Log
from services.rollout.timeouts import first

log = logging.getLogger(__name__)

_MOST_EVENTS = (
    4096  # then the engine's segments wait; a broker that is away is back-pressure, not loss
)
_AT_ONCE = 256
_TRY_S = 30.0
_REST_S = 2.0
_SEND_S = 120.0  # a try, and a rest before it


def _nobody() -> None:
    return None


class Publisher:
    """A bounded queue of events. `done`, where given, is set once the event is acknowledged.

    `away` hears each time that the broker took nothing: whoever waits for room then waits for it.
    """

    def __init__(self, bus: Log, away: Callable[[], None] = _nobody) -> None:
        self._bus, self._away = bus, away
        self.pulse = Pulse("sending")
        self._queue: asyncio.Queue[tuple[Event, asyncio.Event | None]] = asyncio.Queue(_MOST_EVENTS)
        self._due = asyncio.Event()
        self._unsent = 0

    async def put(self, event: Event, done: asyncio.Event | None = None) -> None:
        """Queues an event; it is sent soon."""
        if self._queue.qsize() >= _AT_ONCE:
            self._due.set()
        await self._queue.put((event, done))
        self._unsent += 1

    def hurry(self) -> None:
        """What waits is sent now."""
        if self._unsent:
            self._due.set()

    async def run(self) -> None:
        """Sends for ever: what waits goes out together, and before the next the broker has acknowledged it."""
        while True:
            self.pulse.rest()
            waiting = [await self._queue.get()]
            self.pulse.beat("a rest", _SEND_S)
            await first(self._due, _REST_S)
            while len(waiting) < _AT_ONCE and not self._queue.empty():
                waiting.append(self._queue.get_nowait())
            self._unsent -= len(waiting)
            if not self._unsent:
                self._due.clear()
            dones = {id(event): done for event, done in waiting}
            sends = messages.merged([event for event, _ in waiting])
            await asyncio.gather(
                *(self._send(event, [dones[id(part)] for part in parts]) for event, parts in sends)
            )

    async def _send(self, event: Event, dones: Sequence[asyncio.Event | None]) -> None:
        await self._publish(event)
        for done in dones:
            if done is not None:
                done.set()
            self._queue.task_done()

    async def _publish(self, event: Event) -> None:
        while True:
            self.pulse.beat(
                "a try", _SEND_S
            )  # a broker that is away is no hang, however long it is
            try:
                await self._bus.publish(
                    event.subject,
                    event.message,
                    event.msg_id,
                    traceparent=event.traceparent,
                    deadline_s=_TRY_S,
                )
                return
            except DeadlineMissed as error:
                log.warning("%s; trying on", error)
                self._away()

    async def flush(self, deadline_s: float) -> None:
        """Sends what waits, and waits until all is sent. Raises DeadlineMissed."""
        self.hurry()
        try:
            async with asyncio.timeout(deadline_s):
                await self._queue.join()
        except TimeoutError:
            raise DeadlineMissed(
                f"{self._queue.qsize()} events were not sent within {deadline_s:.0f} s"
            ) from None
