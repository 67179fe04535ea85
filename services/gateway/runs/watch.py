"""News of a run for one watcher: everything at first, then changes, until the run is over."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from banyan.v1 import events_pb2
from banyan.v1 import gateway_service_pb2 as pb
from services.gateway.domain import state_machine
from services.gateway.domain.ports import Store

TICK_S = 1.0  # a lost wake-up delays news by at most this much
# A screen needs at most ten pictures a second, and none while the next trees are being opened.
REST_S = 0.1


class News:
    """The last message to a watcher, and the changes since."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._sent = pb.WatchRunResponse()  # without policies
        self._policies = 0  # the number of the last policy sent

    async def poll(self) -> pb.WatchRunResponse | None:
        """Return the message to send; None if nothing changed."""
        answer = await self._store.read_run(self._run_id, with_progress=True)
        run, progress = answer.run, answer.progress
        members = await self._store.read_members(self._run_id)
        now = pb.WatchRunResponse(run=run, progress=progress, members=members)
        last = self._sent.progress
        moved = (progress.batches, progress.step) != (last.batches, last.step)
        policies = await self._new_policies() if moved or not self._policies else []
        if now == self._sent and not policies:
            return None
        self._sent = pb.WatchRunResponse(run=run, progress=progress, members=members)
        now.policies.extend(policies)
        return now

    async def _new_policies(self) -> list[events_pb2.PolicyPublished]:
        new: list[events_pb2.PolicyPublished] = []
        while page := await self._store.read_policies(self._run_id, after=self._policies):
            self._policies = page[-1].number
            new += [stored.published for stored in page]
        return new


async def watch(
    store: Store, run_id: str, wake: asyncio.Event
) -> AsyncIterator[pb.WatchRunResponse]:
    """Yield news until the run is over."""
    news = News(store, run_id)
    while True:
        wake.clear()
        message = await news.poll()
        if message is not None:
            yield message
            if state_machine.over(message.run.state):
                return
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(TICK_S):
                await wake.wait()
        await asyncio.sleep(REST_S)
