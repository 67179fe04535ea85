"""Replies of the broker to any subject stay in the nodes' account, although it has all rights."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from banyan.v1 import events_pb2
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from tests.gateway.join.test_credentials import RUN, SCOPE, Secured

OTHER = "other-1"
PULL, INFO, ACK = (
    f"$JS.{call}.{subjects.GROWTH}"
    for call in ("API.CONSUMER.MSG.NEXT", "API.CONSUMER.INFO", "ACK")
)
_THEIRS = "the other run's delivery"


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    server = Secured(tmp_path)
    yield server
    server.process.terminate()
    server.process.wait(5)


async def _counts(service: Bus) -> dict[str, object]:
    """Return counts of all messages but the node's own, and the state of the other run's queue."""
    counts: dict[str, object] = {}
    for stream in (subjects.LINEAGE, subjects.GROWTH, subjects.TRAIN, subjects.DEAD):
        info = await service._js.stream_info(stream, subjects_filter=">")
        by_subject = info.state.subjects or {}
        counts |= {name: count for name, count in by_subject.items() if RUN not in name}
    queue = await service._js.consumer_info(subjects.GROWTH, subjects.growth_durable(OTHER))
    return counts | {"pending": queue.num_pending, "unacked": queue.num_ack_pending}


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.API.STREAM.DELETE.LINEAGE",
        "$JS.API.STREAM.PURGE.LINEAGE",
        f"$JS.API.CONSUMER.DELETE.GROWTH.{subjects.growth_durable(OTHER)}",
        f"{PULL}.{subjects.growth_durable(OTHER)}",
        subjects.lineage(OTHER, "segment"),
        subjects.lineage(OTHER, "score"),
        subjects.train(OTHER, "policy"),
        subjects.dead("LINEAGE"),
        _THEIRS,
    ],
)
async def test_no_reply_subject_reaches_the_services(secured: Secured, reply: str) -> None:
    service, node = await secured.service(), await secured.node()
    for run in (RUN, OTHER):
        await service.consumer(
            subjects.GROWTH, subjects.growth_durable(run), [subjects.growth(run)]
        )
        for number in range(2):
            await service.publish(
                subjects.growth(run),
                events_pb2.GrowTree(run_id=run, tree_id=b"t"),
                f"{run}{number}",
            )
    theirs = await service.bind(subjects.GROWTH, subjects.growth_durable(OTHER))
    (delivery,) = await theirs.fetch(1, 5.0)
    reply = delivery.message.reply if reply == _THEIRS else reply
    before = await _counts(service)
    for subject, body in (
        (f"{PULL}.{SCOPE.growth_consumer}", b'{"batch":1,"no_wait":true}'),
        (f"{PULL}.{SCOPE.growth_consumer}", b'{"batch":5,"no_wait":true}'),
        (f"{INFO}.{SCOPE.growth_consumer}", b""),
        (f"{ACK}.{SCOPE.growth_consumer}.1.1.1.1.1", b"+ACK"),
        (subjects.lineage(RUN, "segment"), b"x"),
    ):
        await node.client.publish(subject, body, reply=reply)
    await node.client.publish(subjects.lineage(RUN, "leaf"), b"the last")
    await node.client.flush()
    async with asyncio.timeout(10):  # until the last message has been processed
        while subjects.lineage(RUN, "leaf") not in await service.subjects_of(subjects.LINEAGE):
            await asyncio.sleep(0.05)
    await service.client.flush()
    assert await _counts(service) == before
    await node.close()
    await service.close()
