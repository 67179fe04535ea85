"""Triggers from a real nats-server: groups that close together trigger once."""

import asyncio
import contextlib

from banyan.v1 import events_pb2
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.gateway.clients.events import BusLog

RUN = "log-00000001"


@contextlib.asynccontextmanager
async def hearing(log: BusLog):
    heard: list[None] = []

    async def hear() -> None:
        async for _ in log.triggers(RUN):
            heard.append(None)

    task = asyncio.create_task(hear())
    try:
        yield heard
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_closings_of_a_moment_are_one_trigger_and_none_is_lost(
    nats_server, eventually
) -> None:
    bus = await Bus.connect(nats_server.url, "test")
    await bus.ensure_streams()
    log = BusLog(bus)

    async def close(number: int) -> None:
        message = events_pb2.TreesClosed(
            trees=[events_pb2.TreeClosed(run_id=RUN, tree_id=bytes([number]))]
        )
        await log.publish(subjects.lineage(RUN, "closed"), message, f"closed-{number}")

    async with hearing(log) as heard:
        await close(0)
        await eventually(lambda: asyncio.sleep(0, bool(heard)))
        before = len(heard)
        await asyncio.gather(*(close(number) for number in range(1, 41)))
        await eventually(lambda: asyncio.sleep(0, len(heard) > before))
        assert len(heard) - before < 10
        before = len(heard)
        await log.publish(
            subjects.train(RUN, "policy"), events_pb2.PolicyPublished(run_id=RUN), "policy-1"
        )
        await eventually(lambda: asyncio.sleep(0, len(heard) > before))
    await bus.close()
