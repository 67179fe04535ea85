"""Events in: `lineage.<run>.closed` says that a group may be ready. A trigger only; the store says what is true."""

import asyncio
import contextlib

from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus


class ClosedTrees:
    """Implements ports.Trigger. A lost event costs one tick."""

    def __init__(self) -> None:
        self._seen = asyncio.Event()

    async def listen(self, bus: Bus, run_id: str) -> None:
        """Runs until cancelled."""
        async for _ in bus.listen(subjects.LINEAGE, [subjects.lineage(run_id, "closed")]):
            self._seen.set()

    def set(self) -> None:
        """Triggers now."""
        self._seen.set()

    def clear(self) -> None:
        self._seen.clear()

    async def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._seen.wait()
