"""`ports.Log` on NATS: publishing, and triggers from a run's closed trees and new policies.

A policy triggers at once, because nodes wait for the trees opened under it. Closed trees trigger a
moment later, all of that moment together: the learner waits for them too, and its requests to the
store come first (ADR 035).
"""

import asyncio
from collections.abc import AsyncIterator

from google.protobuf.message import Message

from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus

_COALESCE_S = 0.1


class BusLog:
    """`ports.Log` on NATS."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def publish(
        self,
        subject: str,
        message: Message,
        msg_id: str,
        *,
        traceparent: str = "",
        deadline_s: float = 30.0,
    ) -> int:
        return await self._bus.publish(
            subject, message, msg_id, traceparent=traceparent, deadline_s=deadline_s
        )

    async def triggers(self, run_id: str) -> AsyncIterator[None]:
        happened = asyncio.Event()
        listeners = [
            asyncio.create_task(
                self._subscribe(
                    subjects.LINEAGE, subjects.lineage(run_id, "closed"), happened, _COALESCE_S
                )
            ),
            asyncio.create_task(
                self._subscribe(subjects.TRAIN, subjects.train(run_id, "policy"), happened, 0.0)
            ),
        ]
        try:
            while True:
                await happened.wait()
                happened.clear()
                yield None
        finally:
            for listener in listeners:
                listener.cancel()

    async def _subscribe(
        self, stream: str, subject: str, happened: asyncio.Event, delay_s: float
    ) -> None:
        due, loop = 0.0, asyncio.get_running_loop()
        async for _ in self._bus.listen(stream, [subject]):
            if loop.time() >= due:
                due = loop.time() + delay_s
                loop.call_at(due, happened.set)
