"""The publisher: events rest and go out together; flushes and ends wait for no rest."""

import asyncio

import pytest

from banyan.errors import DeadlineMissed
from banyan.plugins import LeafMark
from banyan.tree import Leaf
from services.rollout.clients import messages, publisher
from services.rollout.clients.publisher import Publisher


class Bus:
    """A log that keeps the numbers of the leaves of each message."""

    def __init__(self):
        self.sent: list[list[int]] = []
        self.away = asyncio.Event()

    async def publish(self, subject, message, msg_id, *, traceparent, deadline_s):
        if self.away.is_set():
            await asyncio.sleep(0.01)
            raise DeadlineMissed("the broker is away")
        self.sent.append([leaf.leaf.segment[-1] for leaf in message.leaves])


def leaf(number):
    mark = LeafMark(Leaf(number.to_bytes(32, "big"), 3), "stop")
    return messages.leaf("run", b"t" * 32, 1, mark, "")


@pytest.fixture
async def sending(monkeypatch):
    """Provide a publisher whose rest is longer than any test, and its log."""
    monkeypatch.setattr(publisher, "_REST_S", 600.0)
    bus = Bus()
    publisher_ = Publisher(bus)
    task = asyncio.create_task(publisher_.run())
    yield publisher_, bus
    task.cancel()


async def sent(bus, count):
    async with asyncio.timeout(10):
        while sum(map(len, bus.sent)) < count:
            await asyncio.sleep(0.01)


async def test_resting_events_go_out_as_one_on_a_flush(sending):
    publisher, bus = sending
    for number in range(3):
        await publisher.put(leaf(number))
        await asyncio.sleep(0)
    assert not bus.sent
    publisher.flush_soon()
    await sent(bus, 3)
    assert bus.sent == [[0, 1, 2]]
    await publisher.put(leaf(3))  # the next rest again
    await asyncio.sleep(0.05)
    assert bus.sent == [[0, 1, 2]]


async def test_a_flush_of_nothing_ends_no_later_rest(sending):
    publisher, bus = sending
    publisher.flush_soon()
    await publisher.flush(1.0)
    await publisher.put(leaf(1))
    await asyncio.sleep(0.05)
    assert not bus.sent


async def test_a_rest_ends_by_itself(monkeypatch):
    monkeypatch.setattr(publisher, "_REST_S", 0.05)
    bus = Bus()
    publisher_ = Publisher(bus)
    task = asyncio.create_task(publisher_.run())
    await publisher_.put(leaf(1))
    await publisher_.put(leaf(2))
    await sent(bus, 2)
    assert bus.sent == [[1, 2]]
    task.cancel()


async def test_many_events_do_not_rest(sending):
    publisher, bus = sending
    for number in [*range(200), *range(200)]:
        await publisher.put(leaf(number))
    await sent(bus, 256)


async def test_a_flush_waits_for_no_rest_and_counts_unsent_events(sending):
    publisher, bus = sending
    done = asyncio.Event()
    await publisher.put(leaf(1), done)
    await publisher.flush(10.0)
    assert bus.sent == [[1]] and done.is_set()
    bus.away.set()
    await publisher.put(leaf(2))
    await asyncio.sleep(0)
    with pytest.raises(DeadlineMissed, match="not sent within"):
        await publisher.flush(0.2)
    await publisher.flush_if_possible(0.01)
