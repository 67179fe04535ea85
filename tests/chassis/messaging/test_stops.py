"""Stops and slow links: messages that a consumer returns, and those that wait to be written."""

import asyncio
import contextlib
import os
import signal

import pytest

from banyan.errors import DeadlineMissed
from banyan.v1 import events_pb2
from services.chassis.messaging import consumer as consumer_module
from services.chassis.messaging import subjects
from tests.chassis.messaging.connected_bus import connected, grow


async def test_what_comes_as_a_consumer_closes_is_somebody_elses_and_never_here(
    nats_server, monkeypatch
) -> None:
    """The request that is open still asks for nothing more once what was sent before is here."""
    bus = await connected(nats_server)
    consumer = await bus.consumer(subjects.GROWTH, "grow", [subjects.growth("r")], ack_wait_s=60.0)
    assert await consumer.fetch(1, 0.05) == []
    held, flush = consumer._subscription, bus.client.flush

    async def late(timeout: float) -> None:
        await flush(timeout)
        await bus.publish(subjects.growth("r"), grow("late"), "id-late")

    await held._nc.publish(held._nms, b'{"batch": 2, "expires": 30000000000}', held._deliver)
    monkeypatch.setattr(bus.client, "flush", late)
    await consumer.close()
    monkeypatch.undo()
    assert held._sub._id not in bus.client._subs  # nothing of it is kept
    (delivery,) = await consumer.fetch(1, 10.0)  # which asks anew
    assert delivery.decode(events_pb2.GrowTree).tree_id == b"late" and delivery.attempts == 1
    await bus.close()


async def test_a_stop_beside_a_broker_that_stands_still_leaves_the_connection_as_it_was(
    nats_server,
) -> None:
    """Work under way at a stop is still published, though the answer may come unawaited."""
    bus = await connected(nats_server)
    consumer = await bus.consumer(subjects.GROWTH, "grow", [subjects.growth("r")])
    assert await consumer.fetch(1, 0.05) == []
    os.kill(nats_server.process.pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(5.0):
            await consumer.close()
    finally:
        os.kill(nats_server.process.pid, signal.SIGCONT)
    assert await bus.publish(subjects.growth("r"), grow("a"), "id-a", deadline_s=5.0)
    await bus.close()


async def test_a_stop_beside_a_broker_that_takes_nothing_has_a_deadline(nats_server) -> None:
    """More waits to be written than the client buffers, so every call waits for the broker."""
    bus = await connected(nats_server)
    consumer = await bus.consumer(subjects.GROWTH, "grow", [subjects.growth("r")])
    assert await consumer.fetch(1, 0.05) == []
    os.kill(nats_server.process.pid, signal.SIGSTOP)
    try:
        for _ in range(200):
            waiting = asyncio.ensure_future(bus.client.publish("x", bytes(500_000)))
            if not (await asyncio.wait([waiting], timeout=1.0))[0]:
                break
        assert not waiting.done()
        for stop in (consumer.close, bus.close):
            assert (await asyncio.wait([asyncio.ensure_future(stop())], timeout=6.0))[0], stop
    finally:
        os.kill(nats_server.process.pid, signal.SIGCONT)


async def test_a_message_that_waits_to_be_written_is_not_written_again(nats_server) -> None:
    """A link slower than the messages would fill with copies, and carry fewer of them in time."""
    bus = await connected(nats_server)
    before = bus.client.stats["out_msgs"]
    payload, count = 500_000, 32  # more than the system's buffers hold
    os.kill(nats_server.process.pid, signal.SIGSTOP)
    try:
        publishing = [
            asyncio.ensure_future(
                bus.publish_bytes(subjects.growth("r"), bytes(payload), f"id-{n}", deadline_s=4.0)
            )
            for n in range(count)
        ]
        results = await asyncio.wait_for(asyncio.gather(*publishing, return_exceptions=True), 12.0)
        assert all(isinstance(result, DeadlineMissed) for result in results)
        # Only those that were written, and not acknowledged, went out a second time.
        assert bus.client.stats["out_msgs"] - before < 2 * count
    finally:
        os.kill(nats_server.process.pid, signal.SIGCONT)
    await bus.close()


async def test_a_fetch_that_is_cancelled_as_its_message_comes_ends_and_returns_it(
    nats_server, monkeypatch
) -> None:
    """Python 3.11's `wait_for` forgets a cancellation that comes with its result."""
    bus = await connected(nats_server)
    consumer = await bus.consumer(subjects.GROWTH, "grow", [subjects.growth("r")])
    assert await bus.publish(subjects.growth("r"), grow("a"), "id-a", deadline_s=5.0)
    plain, came = consumer_module.ready, asyncio.Event()

    async def forgetful(*args):
        messages = await plain(*args)
        came.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return messages

    monkeypatch.setattr(consumer_module, "ready", forgetful)
    fetching = asyncio.create_task(consumer.fetch(1, 5.0))
    await asyncio.wait_for(came.wait(), 5.0)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(fetching, 5.0)
    await consumer.close()
    monkeypatch.setattr(consumer_module, "ready", plain)
    other = await bus.consumer(subjects.GROWTH, "grow", [subjects.growth("r")])
    (delivery,) = await other.fetch(1, 5.0)  # long before the broker would deliver it again itself
    assert delivery.attempts == 2
    await bus.close()
