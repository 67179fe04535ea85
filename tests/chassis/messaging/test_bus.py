"""The bus against a real nats-server: acknowledged once, pulled until acked, alive after a kill."""

import asyncio
import dataclasses
from collections.abc import Iterator

import pytest

from banyan.errors import InvalidInput
from banyan.runtime import ports
from banyan.v1 import events_pb2
from services.chassis.messaging import bus as bus_module
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.process import nats_server as server_module
from tests.chassis.messaging.connected_bus import connected, grow


async def test_the_same_id_is_stored_once(nats_server) -> None:
    bus = await connected(nats_server)
    first = await bus.publish(subjects.growth("r"), grow("a"), "id-a", traceparent="00-1-2-01")
    again = await bus.publish(subjects.growth("r"), grow("a"), "id-a")
    assert first == again
    consumer = await bus.consumer(subjects.GROWTH, "grow", [subjects.growth("r")])
    (delivery,) = await consumer.fetch(10, 2.0)
    assert delivery.decode(events_pb2.GrowTree).tree_id == b"a"
    assert delivery.traceparent == "00-1-2-01" and delivery.run_id == "r" and delivery.attempts == 1
    await bus.close()


async def test_an_unacked_message_comes_again_and_an_acked_one_does_not(nats_server) -> None:
    bus = await connected(nats_server)
    await bus.publish(subjects.growth("r"), grow("a"), "id-a")
    consumer = await bus.consumer(subjects.GROWTH, "grow", [subjects.growth("r")], ack_wait_s=0.3)
    (first,) = await consumer.fetch(1, 2.0)
    (second,) = await consumer.fetch(1, 5.0)
    assert first.sequence == second.sequence and second.attempts == 2
    await second.ack()
    assert await consumer.fetch(1, 0.6) == []
    await bus.close()


async def test_a_fetch_gives_what_is_there_at_once_and_no_more_than_asked(nats_server) -> None:
    bus = await connected(nats_server)
    consumer = await bus.consumer(subjects.GROWTH, "grow", [subjects.growth("r")])
    for number in range(4):
        fetching = asyncio.create_task(consumer.fetch(64, 30.0))
        await bus.publish(subjects.growth("r"), grow("a"), f"id-{number}")
        async with asyncio.timeout(10.0):
            (delivery,) = await fetching
        await delivery.ack()
    for number in range(5):
        await bus.publish(subjects.growth("r"), grow("a"), f"more-{number}")
    assert len(await consumer.fetch(3, 30.0)) == 3 and len(await consumer.fetch(64, 30.0)) == 2
    await bus.close()


async def test_a_fetch_after_its_time_ends_nothing_and_asks_once_more(nats_server) -> None:
    """A process that was suspended (SIGSTOP, no memory) before its request is late, not wrong."""
    bus = await connected(nats_server)
    consumer = await bus.consumer(subjects.GROWTH, "grow", [subjects.growth("r")])
    assert await consumer.fetch(1, -5.0) == []
    await bus.publish(subjects.growth("r"), grow("a"), "id-a")
    (delivery,) = await consumer.fetch(1, -5.0) or await consumer.fetch(1, 2.0)
    assert delivery.decode(events_pb2.GrowTree).tree_id == b"a"
    await bus.close()


async def test_what_came_and_was_not_fetched_is_given_back_at_the_end(
    nats_server, eventually
) -> None:
    """Another consumer receives it at once, not after the wait for an acknowledgement."""
    bus = await connected(nats_server)
    consumer = await bus.consumer(subjects.GROWTH, "grow", [subjects.growth("r")], ack_wait_s=60.0)
    assert await consumer.fetch(1, 0.05) == []
    held = consumer._subscription
    for number in range(2):
        await bus.publish(subjects.growth("r"), grow(str(number)), f"id-{number}")
    await held._nc.publish(held._nms, b'{"batch": 2, "no_wait": true}', held._deliver)
    await eventually(lambda: held._sub._pending_queue.qsize() >= 2)
    await consumer.close()
    other = await bus.consumer(subjects.GROWTH, "grow", [subjects.growth("r")], ack_wait_s=60.0)
    found: set[bytes] = set()
    async with asyncio.timeout(20.0):
        while len(found) < 2:
            found |= {
                delivery.decode(events_pb2.GrowTree).tree_id
                for delivery in await other.fetch(8, 1.0)
            }
    await bus.close()


async def test_a_killed_broker_comes_back_with_what_it_acknowledged(
    nats_server, monkeypatch
) -> None:
    monkeypatch.setattr(bus_module, "_ACK_S", 0.5)
    bus = await connected(nats_server)
    consumer = await bus.consumer(subjects.GROWTH, "grow", [subjects.growth("r")])
    for i in range(20):
        await bus.publish(subjects.growth("r"), grow(str(i)), f"id-{i}")
    nats_server.kill9()
    waiting = asyncio.create_task(
        bus.publish(subjects.growth("r"), grow("late"), "id-late", deadline_s=20.0)
    )
    nats_server.restart()
    await waiting
    seen: set[bytes] = set()
    for _ in range(40):
        for delivery in await consumer.fetch(8, 0.5):
            seen.add(delivery.decode(events_pb2.GrowTree).tree_id)
            await delivery.ack()
        if len(seen) == 21:
            break
    assert len(seen) == 21
    await bus.close()


async def test_who_waits_for_a_broker_that_was_started_again_gets_what_comes_then(
    nats_server, monkeypatch
) -> None:
    """A broker forgets pull requests when it ends, so the request must be renewed."""
    monkeypatch.setattr(bus_module, "_ACK_S", 0.5)
    bus = await connected(nats_server)
    consumer = await bus.consumer(subjects.GROWTH, "grow", [subjects.growth("r")])
    assert await consumer.fetch(1, 0.05) == []
    waiting = asyncio.create_task(consumer.fetch(1, 60.0))
    await asyncio.wait([waiting], timeout=0.2)
    nats_server.kill9()
    nats_server.restart()
    await bus.publish(subjects.growth("r"), grow("after"), "id-after", deadline_s=20.0)
    (delivery,) = await asyncio.wait_for(waiting, 15.0)
    assert delivery.decode(events_pb2.GrowTree).tree_id == b"after"
    await bus.close()


async def test_a_listener_gets_the_last_of_each_subject_then_new_ones(nats_server) -> None:
    bus = await connected(nats_server)
    for step in range(3):
        message = events_pb2.PolicyPublished(run_id="r", batch_ordinal=step)
        await bus.publish(subjects.train("r", "policy"), message, f"p{step}")
    heard: list[int] = []

    async def listen() -> None:
        async for delivery in bus.listen(subjects.TRAIN, [subjects.train("r", "policy")]):
            heard.append(delivery.decode(events_pb2.PolicyPublished).batch_ordinal)
            if len(heard) == 1:
                await bus.publish(
                    subjects.train("r", "policy"), events_pb2.PolicyPublished(batch_ordinal=9), "p9"
                )
            if len(heard) == 2:
                return

    await asyncio.wait_for(listen(), 10.0)
    assert heard == [2, 9]
    await bus.close()


async def test_a_buried_message_is_a_dead_letter_and_never_comes_again(nats_server) -> None:
    bus = await connected(nats_server)
    await bus.publish(subjects.growth("r"), grow("bad"), "bad")
    consumer = await bus.consumer(subjects.GROWTH, "grow", [subjects.growth("r")], ack_wait_s=0.3)
    (delivery,) = await consumer.fetch(1, 2.0)
    await bus.dead_letter(subjects.GROWTH, delivery, "no such tree", "rollout")
    assert await consumer.fetch(1, 0.6) == []
    dead = await bus.consumer(subjects.DEAD, "dead", ["dead.>"])
    (letter,) = await dead.fetch(1, 2.0)
    body = letter.decode(events_pb2.DeadLetter)
    assert (body.reason, body.service, body.attempts) == ("no such tree", "rollout", 1)
    await bus.close()


async def test_a_message_that_is_too_large_for_a_letter_is_buried_without_its_bytes(
    nats_server,
) -> None:
    """Otherwise it would come again and again, also to the next process."""
    bus = await connected(nats_server)
    await bus.client.publish(subjects.growth("r"), bytes((1 << 20) - 4200))
    await bus.client.flush()
    consumer = await bus.consumer(subjects.GROWTH, "grow", [subjects.growth("r")], ack_wait_s=0.3)
    (delivery,) = await consumer.fetch(1, 2.0)
    await bus.dead_letter(subjects.GROWTH, delivery, "no message " + "x" * 10_000, "rollout")
    assert await consumer.fetch(1, 0.6) == []
    dead = await bus.consumer(subjects.DEAD, "dead", ["dead.>"])
    (letter,) = await dead.fetch(1, 2.0)
    body = letter.decode(events_pb2.DeadLetter)
    assert (
        not body.payload
        and body.reason.startswith("no message")
        and "fit into no letter" in body.reason
    )
    await bus.close()


async def test_a_message_that_the_broker_would_cut_the_line_for_is_refused_here(
    nats_server,
) -> None:
    """The limit includes headers; a message just below it is not tried forever."""
    bus = await Bus.connect(nats_server.url, "test")
    await bus.ensure_streams()
    letter = events_pb2.DeadLetter(payload=bytes((1 << 20) - 20))
    with pytest.raises(InvalidInput, match="split it"):
        await bus.publish(subjects.dead("X"), letter, "large")
    letter.payload = bytes((1 << 20) - 5000)
    assert (
        await bus.publish(
            subjects.dead("X"), letter, "largest", traceparent="00-" + "1" * 51, deadline_s=5.0
        )
        == 1
    )
    await bus.close()


@pytest.fixture
def narrow(tmp_path) -> Iterator[str]:
    """Start a broker whose streams may have 1 GB together."""
    address = f"127.0.0.1:{ports.free_port()}"
    config = server_module.write_config(tmp_path / "narrow", address)
    config.write_text(config.read_text().replace(server_module.MAX_FILE_STORE, "1GB"))
    process = server_module.start(config, tmp_path / "log")
    server_module.await_listening(address, process, tmp_path / "log")
    yield f"nats://{address}"
    process.terminate()
    process.wait(5)


async def test_a_broker_without_room_is_said_at_once_with_what_to_change(narrow) -> None:
    bus = await Bus.connect(narrow, "test")
    async with asyncio.timeout(5):
        with pytest.raises(
            InvalidInput, match=r"LINEAGE .*10047.* max_file_store .* must be \d+ MiB or more"
        ):
            await bus.ensure_streams()
    await bus.close()


async def test_streams_of_other_limits_get_those_of_today(nats_server) -> None:
    bus = await Bus.connect(nats_server.url, "test")
    for config in subjects.STREAMS:
        await bus._js.add_stream(dataclasses.replace(config, max_bytes=2 << 30))
    await bus.publish(subjects.growth("r"), grow("a"), "id-a")
    await bus.ensure_streams()
    info = await bus._js.stream_info(subjects.GROWTH)
    assert (info.config.max_bytes, info.state.messages) == (256 << 20, 1)
    await bus.close()


def test_the_streams_fit_wherever_a_server_starts(tmp_path) -> None:
    """Also those of a folder from when each had 2 GiB: the server counts them as it starts."""
    assert "max_file_store: 16GB" in server_module.write_config(tmp_path, "127.0.0.1:1").read_text()
    assert subjects.RESERVED <= 3 << 30 and len(subjects.STREAMS) * (2 << 30) < 16_000_000_000
