"""Two runs side by side: a slow scorer or a long backlog of one does not delay the other."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from banyan.v1 import events_pb2, tree_pb2, treestore_service_pb2
from services.chassis.messaging import consumer as pull
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.verifier import worker_loop
from services.verifier.consumer import LeafConsumer
from services.verifier.groups import GroupConsumer
from services.verifier.intake.share import MAX_WAITING, MAX_WAITING_BYTES, Share

SLOW, FAST, MOST = "slow-1", "fast-1", 4


class Job:
    def __init__(self, weight: int = 1, size: int = 10) -> None:
        self.weight, self.bytes = weight, size


def test_a_share_begins_up_to_its_bound_and_goes_on_as_what_is_under_way_ends() -> None:
    share: Share[Job] = Share(max_under_way=4)
    jobs = [Job(3), Job(3), Job(1)]
    assert all(share.offer(job) for job in jobs)
    assert (
        share.begin() == jobs[:2]
    )  # below the bound another message is begun, however many leaves it has
    assert not share.begin()
    share.release(3, 0.0)
    assert share.begin() == jobs[2:]
    share.release(4, 0.0)
    assert share.idle and share.waiting_bytes == share.waiting_weight == 0


def test_what_a_share_has_no_room_for_comes_again_later_each_time() -> None:
    share: Share[Job] = Share(max_under_way=1)
    assert all(share.offer(Job()) for _ in range(MAX_WAITING))
    assert not share.offer(Job())
    large: Share[Job] = Share(max_under_way=1)
    assert large.offer(Job(size=2 * MAX_WAITING_BYTES))  # alone, it is taken whatever its size
    assert not large.offer(Job())
    assert [share.delay_s(Job(), n, 0.0) for n in (1, 2, 3, 20)] == [0.1, 0.2, 0.4, 30.0]


class Store:
    """A store that has every leaf."""

    async def read_leaves(
        self, leaves: Sequence[events_pb2.LeafFinished], deadline_s: float
    ) -> tuple[list[Any], int]:
        found = [
            treestore_service_pb2.LeafTranscript(
                key=treestore_service_pb2.LeafKey(
                    tree_id=leaf.tree_id, leaf=leaf.leaf, claim_epoch=leaf.claim_epoch
                ),
                run_id=leaf.run_id,
            )
            for leaf in leaves
        ]
        return found, 0


class Handler:
    """A handler that holds the scores of one run until the test lets them go."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.go = asyncio.Event()

    async def score(self, transcript: Any) -> None:
        await self._work(transcript.run_id)

    async def handle(self, run_id: str, ends: Any) -> bool:
        await self._work(run_id)
        return True

    async def _work(self, run_id: str) -> None:
        self.begun[run_id] += 1
        if run_id == SLOW:
            await self.go.wait()
        self.done[run_id] += 1


@pytest.fixture
async def bus(nats_server: Any) -> AsyncIterator[Bus]:
    made = await Bus.connect(nats_server.url, "test")
    await made.ensure_streams()
    yield made
    await made.close()


async def _say(bus: Bus, run_id: str, number: int) -> None:
    place = tree_pb2.LeafRef(segment=number.to_bytes(32, "big"), end=3)
    leaf = events_pb2.LeafFinished(run_id=run_id, tree_id=b"t" * 32, claim_epoch=1, leaf=place)
    message = events_pb2.LeavesFinished(leaves=[leaf])
    await bus.publish(subjects.lineage(run_id, "leaf"), message, f"leaf-{run_id}-{number}")


async def _grown(bus: Bus, run_id: str, number: int) -> None:
    tree = events_pb2.TreeGrown(run_id=run_id, tree_id=number.to_bytes(32, "big"), claim_epoch=1)
    message = events_pb2.TreesGrown(trees=[tree])
    await bus.publish(subjects.lineage(run_id, "grown"), message, f"grown-{run_id}-{number}")


@contextlib.asynccontextmanager
async def _running(consumer: Any, handler: Handler) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(consumer.run(stop))
    try:
        yield
    finally:
        stop.set()
        handler.go.set()
        await asyncio.wait_for(task, 15)


async def test_a_slow_scorer_holds_up_the_scores_of_its_own_run_alone(
    bus: Bus, eventually: Any
) -> None:
    handler, backlog = Handler(), MAX_WAITING + 40  # more than the share of its run holds
    for number in range(backlog):
        await _say(bus, SLOW, number)
    async with _running(LeafConsumer(bus, Store(), handler, MOST), handler):
        await eventually(lambda: handler.begun[SLOW] == MOST)
        for number in range(3 * MOST):
            await _say(bus, FAST, number)
        await eventually(lambda: handler.done[FAST] == 3 * MOST, 5.0)
        assert handler.begun[SLOW] == MOST and not handler.done[SLOW]
        handler.go.set()
        await eventually(lambda: handler.done[SLOW] == backlog, 20.0)  # nothing of it was lost


async def test_what_waits_where_a_verifier_stops_is_another_ones_at_once(
    bus: Bus, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only after the ack wait, though the first one's last request may still be open."""
    monkeypatch.setattr(worker_loop, "ACK_WAIT_S", 60.0)

    async def lingering(subscription: Any, batch: int, timeout_s: float) -> list[Any]:
        found = await ready(subscription, batch, timeout_s)
        await subscription._nc.publish(
            subscription._nms, b'{"batch": 1, "expires": 30000000000}', subscription._deliver
        )
        return found

    ready = pull.ready
    monkeypatch.setattr(pull, "ready", lingering)
    for number in range(5 * MOST):
        await _say(bus, SLOW, number)
    first, second, stop = Handler(), Handler(), asyncio.Event()
    second.go.set()
    stopping = asyncio.create_task(LeafConsumer(bus, Store(), first, MOST).run(stop))
    await eventually(lambda: first.begun[SLOW] == MOST)
    stop.set()
    async with _running(LeafConsumer(bus, Store(), second, MOST), second):  # type: ignore[arg-type]
        await eventually(lambda: second.done[SLOW] == 4 * MOST, 20.0)
        first.go.set()
        await asyncio.wait_for(stopping, 15)
    assert first.done[SLOW] == MOST


async def test_a_slow_scorer_of_groups_does_not_either(bus: Bus, eventually: Any) -> None:
    handler = Handler()
    for number in range(40):
        await _grown(bus, SLOW, number)
    async with _running(GroupConsumer(bus, handler), handler):  # type: ignore[arg-type]
        await eventually(lambda: handler.begun[SLOW] >= 16)
        for number in range(8):
            await _grown(bus, FAST, number)
        await eventually(lambda: handler.done[FAST] == 8, 5.0)
        assert not handler.done[SLOW]


class RecordingBus:
    """A consumer and its bus, which delivers its messages once and records the answers in order."""

    def __init__(self, subject: str, messages: Sequence[Any]) -> None:
        self.answers: list[str] = []
        self.closed = asyncio.Event()
        self._left = [RecordedDelivery(self.answers, subject, message) for message in messages]

    async def consumer(self, *_: Any, **__: Any) -> "RecordingBus":
        return self

    async def fetch(self, *_: Any) -> "list[RecordedDelivery]":
        messages, self._left = self._left, []
        await asyncio.sleep(0)
        return messages

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.answers.append("close")
        self.closed.set()


class RecordedDelivery:
    """A message of that bus."""

    attempts = 1

    def __init__(self, answers: list[str], subject: str, message: Any) -> None:
        self._answers, self.subject, self._message = answers, subject, message
        self.run_id, self.data = SLOW, message.SerializeToString()

    def decode(self, _: type) -> Any:
        return self._message

    async def in_progress(self) -> None:
        pass

    async def ack(self) -> None:
        self._answers.append("ack")

    async def nak(self, delay_s: float) -> None:
        self._answers.append(f"again in {delay_s:.0f} s")


def _leaves(number: int) -> events_pb2.LeavesFinished:
    place = tree_pb2.LeafRef(segment=number.to_bytes(32, "big"), end=3)
    return events_pb2.LeavesFinished(
        leaves=[events_pb2.LeafFinished(run_id=SLOW, tree_id=b"t" * 32, leaf=place)]
    )


def _ended(number: int) -> events_pb2.TreesGrown:
    return events_pb2.TreesGrown(
        trees=[events_pb2.TreeGrown(run_id=SLOW, tree_id=number.to_bytes(32, "big"))]
    )


@pytest.mark.parametrize("kind", ["leaf", "grown"])
async def test_a_stop_ends_the_fetching_then_returns_waiting_messages_then_drains(
    eventually: Any, kind: str
) -> None:
    handler, stop, waiting = Handler(), asyncio.Event(), 2 if kind == "leaf" else 0
    say = _leaves if kind == "leaf" else _ended
    recording: Any = RecordingBus(
        subjects.lineage(SLOW, kind), [say(number) for number in range(MOST + waiting)]
    )
    one: Any = (
        LeafConsumer(recording, Store(), handler, MOST)
        if kind == "leaf"
        else GroupConsumer(recording, handler)
    )  # type: ignore[arg-type]
    running = asyncio.create_task(one.run(stop))
    await eventually(lambda: handler.begun[SLOW] == MOST)
    one.pulse._clock = lambda: 1e12
    assert "taking messages" in one.pulse.late  # had the last fetch not ended
    stop.set()
    await asyncio.wait_for(recording.closed.wait(), 5.0)
    first = ["close", *["again in 0 s"] * waiting]
    await eventually(lambda: len(recording.answers) >= len(first))
    assert recording.answers == first and not running.done() and not handler.done
    one.pulse._clock = lambda: 1e13
    assert not one.pulse.late  # scores that end have their own deadlines
    handler.go.set()
    await asyncio.wait_for(running, 5.0)
    assert recording.answers == first + ["ack"] * MOST
