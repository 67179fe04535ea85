"""Polls of the policies of a run."""

import asyncio
import logging
from collections.abc import AsyncIterator

from banyan.errors import BanyanError
from services.chassis.rpc.health import Pulse
from services.rollout.timeouts import background, first
from services.rollout.weights.refresh import Refresher

log = logging.getLogger(__name__)

_EVERY_S = 5.0
_POLL_S = 180.0  # a call that the store may answer after it was started again


class PolicyWatch:
    """The loop that polls the policies, when an event says so and now and then without one.

    refresher: reader of the policies.
    triggers: events that say that there is a new policy.
    polled: set after each poll.
    """

    def __init__(
        self, refresher: Refresher, triggers: AsyncIterator[object], polled: asyncio.Event
    ) -> None:
        self._refresher, self._triggers, self._polled = refresher, triggers, polled
        self.pulse = Pulse("policies")

    async def run(self) -> None:
        """Poll until cancelled."""
        triggered = asyncio.Event()
        async with background(self._receive(triggered)):
            while True:
                self.pulse.beat("a look", _POLL_S)
                try:
                    await self._refresher.poll()
                except BanyanError as error:
                    log.warning("policies are not read: %s", error)
                self._polled.set()
                await first(triggered, _EVERY_S)
                triggered.clear()

    async def _receive(self, triggered: asyncio.Event) -> None:
        async for _ in self._triggers:
            triggered.set()
