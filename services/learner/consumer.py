"""Incoming events: `lineage.<run>.closed` means that a group may be ready; the store says which."""

import asyncio
import contextlib

from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus


class ClosedTrees:
    """Implements ports.Trigger. A lost event costs one tick."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def listen(self, bus: Bus, run_id: str) -> None:
        """Trigger on each event of a run until cancelled."""
        async for _ in bus.listen(subjects.LINEAGE, [subjects.lineage(run_id, "closed")]):
            self._event.set()

    def set(self) -> None:
        """Trigger now."""
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
