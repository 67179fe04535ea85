"""News of a run for one watcher: everything at first, then what changed, until the run is over."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from banyan.v1 import events_pb2
from banyan.v1 import gateway_service_pb2 as pb
from services.gateway.domain import state_machine
from services.gateway.domain.ports import Store

TICK_S = 1.0  # looks are shared with nobody, so a lost wake-up delays news by this much at most
# a screen needs no more than ten pictures a second, and none while the next trees are being opened
REST_S = 0.1


class News:
    """What a watcher has seen, and what is new since."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._seen = pb.WatchRunResponse()
        self._policies = 0  # the number of the last one

    async def look(self) -> pb.WatchRunResponse | None:
        """The message to send; None if nothing changed."""
        run = (await self._store.read_run(self._run_id)).run
        progress = await self._store.read_progress(self._run_id)
        members = await self._store.read_members(self._run_id)
        now = pb.WatchRunResponse(run=run, progress=progress, members=members)
        moved = (
            progress.batches != self._seen.progress.batches
            or progress.step != self._seen.progress.step
        )
        policies = await self._new_policies() if moved or not self._policies else []
        if now == self._seen and not policies:
            return None
        self._seen = pb.WatchRunResponse(run=run, progress=progress, members=members)
        now.policies.extend(policies)
        return now

    async def _new_policies(self) -> list[events_pb2.PolicyPublished]:
        new: list[events_pb2.PolicyPublished] = []
        while found := await self._store.read_policies(self._run_id, after=self._policies):
            self._policies = found[-1].number
            new += [stored.published for stored in found]
        return new


async def watch(
    store: Store, run_id: str, wake: asyncio.Event
) -> AsyncIterator[pb.WatchRunResponse]:
    """Yields news until the run is over."""
    news = News(store, run_id)
    while True:
        wake.clear()
        message = await news.look()
        if message is not None:
            yield message
            if state_machine.over(message.run.state):
                return
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(TICK_S):
                await wake.wait()
        await asyncio.sleep(REST_S)
