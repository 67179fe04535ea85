"""Requests that stay open behind a fetch: messages come unasked, once, and survive the broker."""

import asyncio
from typing import Any

import pytest

from banyan.v1 import events_pb2
from services.chassis.messaging import bus as bus_module
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.consumer import Consumer
from services.chassis.messaging.delivery import Delivery
from tests.chassis.messaging.connected_bus import connected, grow


async def _standing(bus: Bus, rest_s: float = 0.0) -> Consumer:
    filters = [subjects.growth("r")]
    return await bus.consumer(
        subjects.GROWTH, "grow", filters, ack_wait_s=60.0, standing=8, rest_s=rest_s
    )


def _requests(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the subjects of the pull requests that the bus makes from now on."""
    made: list[str] = []
    publish = bus.client.publish

    async def counted(subject: str, *args: Any, **options: Any) -> None:
        if ".CONSUMER.MSG.NEXT." in subject:
            made.append(subject)
        await publish(subject, *args, **options)

    monkeypatch.setattr(bus.client, "publish", counted)
    return made


def _name(delivery: Delivery) -> bytes:
    return delivery.decode(events_pb2.GrowTree).tree_id


async def test_messages_come_without_a_request_each_and_none_is_lost_or_doubled(
    nats_server, monkeypatch
) -> None:
    bus = await connected(nats_server)
    consumer, requests = await _standing(bus), _requests(bus, monkeypatch)
    heard: list[bytes] = []
    began = asyncio.get_running_loop().time()
    for number in range(40):
        await bus.publish(subjects.growth("r"), grow(str(number)), f"id-{number}")
        for delivery in await consumer.fetch(8, 10.0):
            heard.append(_name(delivery))
            await delivery.ack()
    seconds = asyncio.get_running_loop().time() - began
    assert heard == [str(number).encode() for number in range(40)]
    assert len(requests) <= 40 // 8 + seconds + 2, "one for eight messages, or for a second"
    await bus.close()


async def test_a_fetch_takes_no_more_than_it_may_and_the_next_has_the_rest(nats_server) -> None:
    bus = await connected(nats_server)
    for number in range(12):
        await bus.publish(subjects.growth("r"), grow(str(number)), f"id-{number}")
    consumer = await _standing(bus, rest_s=0.2)
    sizes = []
    while sum(sizes) < 12:
        sizes.append(len(await consumer.fetch(5, 10.0)))
    assert max(sizes) <= 5 and sum(sizes) == 12
    assert await consumer.fetch(5, 0.2) == []
    await bus.close()


async def test_what_follows_within_the_rest_comes_with_the_first(nats_server) -> None:
    bus = await connected(nats_server)
    consumer = await _standing(bus, rest_s=2.0)
    fetching = asyncio.create_task(consumer.fetch(8, 30.0))
    for number in range(2):
        await bus.publish(subjects.growth("r"), grow(str(number)), f"id-{number}")
    assert [_name(delivery) for delivery in await fetching] == [b"0", b"1"]
    await bus.close()


async def test_a_rest_that_is_cancelled_gives_its_message_back(nats_server, eventually) -> None:
    bus = await connected(nats_server)
    consumer = await _standing(bus, rest_s=60.0)
    fetching = asyncio.create_task(consumer.fetch(8, 30.0))
    await bus.publish(subjects.growth("r"), grow("a"), "id-a")
    await eventually(lambda: consumer._request is not None and consumer._request._left == 7)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    await consumer.close()
    other = await _standing(bus)
    (delivery,) = await other.fetch(8, 10.0)  # long before its wait for an acknowledgement is over
    assert (_name(delivery), delivery.attempts) == (b"a", 2)
    await bus.close()


async def test_a_broker_that_was_started_again_is_asked_again(nats_server, monkeypatch) -> None:
    monkeypatch.setattr(bus_module, "_ACK_S", 0.5)
    bus = await connected(nats_server)
    consumer = await _standing(bus)
    assert await consumer.fetch(1, 0.05) == []
    waiting = asyncio.create_task(consumer.fetch(1, 60.0))
    await asyncio.wait([waiting], timeout=0.2)
    nats_server.kill9()
    nats_server.restart()
    await bus.publish(subjects.growth("r"), grow("after"), "id-after", deadline_s=20.0)
    (delivery,) = await asyncio.wait_for(waiting, 15.0)
    assert _name(delivery) == b"after"
    await bus.close()


async def test_a_consumer_that_the_broker_lost_is_made_again(nats_server) -> None:
    bus = await connected(nats_server)
    consumer = await _standing(bus)
    assert await consumer.fetch(1, 0.05) == []
    await bus.delete_consumer(subjects.GROWTH, "grow")
    await bus.publish(subjects.growth("r"), grow("a"), "id-a")
    async with asyncio.timeout(20.0):
        while not (deliveries := await consumer.fetch(8, 1.0)):
            pass
    assert [_name(delivery) for delivery in deliveries] == [b"a"]
    await bus.close()
