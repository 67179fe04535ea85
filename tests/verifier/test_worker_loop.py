"""The loop that both consumers share, against a broker in memory."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from banyan.errors import DeadlineMissed, InvalidInput
from services.verifier import worker_loop
from services.verifier.consumer import LeafConsumer
from services.verifier.worker_loop import Intake, Job, WorkerLoop


@dataclass
class _Delivery:
    """A message, and the answers to it."""

    data: bytes
    run_id: str = "run"
    attempts: int = 1
    answers: list[str] = field(default_factory=list)

    async def ack(self) -> None:
        self.answers.append("ack")

    async def nak(self, delay_s: float) -> None:
        self.answers.append(f"nak {delay_s:g}")

    async def in_progress(self) -> None:
        self.answers.append("in progress")


class _Bus:
    """A broker and its consumer: delivers messages as they are put in, keeps dead letters."""

    def __init__(self, *, up: bool = True) -> None:
        self.messages: asyncio.Queue[_Delivery] = asyncio.Queue()
        self.dead: list[str] = []
        self._up = up

    async def consumer(self, *args: Any, **options: Any) -> "_Bus":
        return self

    async def fetch(self, batch: int, timeout_s: float) -> list[_Delivery]:
        fetched: list[_Delivery] = []
        while len(fetched) < batch and not self.messages.empty():
            fetched.append(self.messages.get_nowait())
        await asyncio.sleep(0.001)
        return fetched

    async def close(self) -> None:
        pass

    async def dead_letter(self, stream: str, delivery: Any, reason: str, service: str) -> None:
        if not self._up:
            raise DeadlineMissed("no ack from NATS")
        self.dead.append(reason)


class _Loop(WorkerLoop[bytes]):
    """Processes messages once `go` is set, and fails on b"mistake"."""

    def __init__(self, bus: Any, **limits: Any) -> None:
        super().__init__(bus, "test", Intake(durable="test", subjects=["*"], fetch=64, **limits))
        self.batches: list[list[bytes]] = []
        self.go = asyncio.Event()

    def decode(self, delivery: Any) -> Job[bytes] | None:
        if delivery.data == b"malformed":
            raise InvalidInput("malformed")
        if delivery.data == b"nothing":
            return None
        return Job(delivery=delivery, content=delivery.data, weight=1, label="a message")

    async def process(self, jobs: Sequence[Job[bytes]]) -> None:
        self.batches.append([job.content for job in jobs])
        await self.go.wait()
        for job in jobs:
            if job.content == b"mistake":
                raise ValueError(job.content)
            await job.delivery.ack()


async def _run(loop: _Loop, bus: _Bus, *contents: bytes) -> list[_Delivery]:
    """Deliver messages, stop the loop once they were offered, then let it process them."""
    deliveries = [_Delivery(content) for content in contents]
    for delivery in deliveries:
        bus.messages.put_nowait(delivery)
    stop = asyncio.Event()
    running = asyncio.create_task(loop.run(stop))
    await asyncio.sleep(0.05)
    stop.set()
    await asyncio.sleep(0.05)
    loop.go.set()
    await asyncio.wait_for(running, 5)
    return deliveries


async def test_messages_that_can_begin_together_are_one_batch_where_the_loop_batches() -> None:
    bus = _Bus()
    loop = _Loop(bus, max_under_way=2, batched=True)
    await _run(loop, bus, b"a", b"b", b"c")
    assert loop.batches == [[b"a", b"b"]]
    bus = _Bus()
    loop = _Loop(bus, max_under_way=2)
    await _run(loop, bus, b"a", b"b", b"c")
    assert loop.batches == [[b"a"], [b"b"]]


async def test_a_stop_returns_waiting_messages_at_once_and_drains_the_others() -> None:
    bus = _Bus()
    first, second = await _run(_Loop(bus, max_under_way=1), bus, b"a", b"b")
    assert first.answers == ["ack"] and second.answers == ["nak 0"]


async def test_messages_beyond_the_share_of_their_run_come_again_later() -> None:
    bus = _Bus()
    first, second = await _run(_Loop(bus, max_under_way=1, max_waiting=0), bus, b"a", b"b")
    assert first.answers == ["ack"] and second.answers == ["nak 0.1"]


async def test_messages_that_wait_or_are_processed_are_reported_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_loop, "PROGRESS_S", 0.01)
    bus = _Bus()
    for delivery in await _run(_Loop(bus, max_under_way=1), bus, b"a", b"b"):
        assert delivery.answers[0] == "in progress"


async def test_a_message_that_asks_for_nothing_is_acknowledged() -> None:
    bus = _Bus()
    (delivery,) = await _run(_Loop(bus, max_under_way=1), bus, b"nothing")
    assert delivery.answers == ["ack"]


async def test_a_malformed_message_is_a_dead_letter_and_comes_again_if_the_broker_is_away() -> None:
    bus = _Bus()
    (delivery,) = await _run(_Loop(bus, max_under_way=1), bus, b"malformed")
    assert bus.dead == ["malformed"] and not delivery.answers
    bus = _Bus(up=False)
    (delivery,) = await _run(_Loop(bus, max_under_way=1), bus, b"malformed")
    assert delivery.answers == ["nak 0.5"]


async def test_a_mistake_in_the_program_ends_neither_the_loop_nor_other_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = _Bus()
    loop = _Loop(bus, max_under_way=2)
    failed, other = await _run(loop, bus, b"mistake", b"b")
    assert failed.answers == ["nak 0.5"] and other.answers == ["ack"]
    assert "a message comes again after an unexpected error" in caplog.text


async def test_a_mistake_with_one_message_leaves_the_others_of_its_batch_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad, good = _Delivery(b"bad"), _Delivery(b"good")

    async def process_one(self: LeafConsumer, job: Any, answer: Any) -> None:
        if job.delivery is bad:
            raise KeyError("a mistake")
        async with asyncio.timeout(5):
            while not bad.answers:  # still scored as the other fails
                await asyncio.sleep(0)
        await job.delivery.ack()

    monkeypatch.setattr(LeafConsumer, "_process_one", process_one)
    unused: Any = None
    deliveries: Any = (bad, good)
    jobs: Any = [Job(delivery=d, content=[], weight=1, label="a leaf") for d in deliveries]

    async def nothing(*_: Any) -> Any:
        return None

    consumer = LeafConsumer(unused, unused, unused, 4)
    monkeypatch.setattr(consumer, "_read", nothing)
    await consumer._process(jobs)
    assert bad.answers == ["nak 0.5"] and good.answers == ["ack"]


class _Quiet(_Bus):
    """A broker without further messages: the next fetch waits until it is `over`."""

    def __init__(self) -> None:
        super().__init__()
        self.over = asyncio.Event()

    async def fetch(self, batch: int, timeout_s: float) -> list[_Delivery]:
        if self.messages.empty():
            await self.over.wait()
        return await super().fetch(batch, timeout_s)


async def test_a_job_that_ends_lets_the_next_begin_and_the_last_leaves_nothing(
    eventually: Any,
) -> None:
    """Both without a fetch, which may take its whole time."""
    bus, stop = _Quiet(), asyncio.Event()
    loop, deliveries = _Loop(bus, max_under_way=1), [_Delivery(b"a"), _Delivery(b"b")]
    for delivery in deliveries:
        bus.messages.put_nowait(delivery)
    running = asyncio.create_task(loop.run(stop))
    await eventually(lambda: loop.batches == [[b"a"]], 5.0)
    loop.go.set()
    await eventually(lambda: loop.batches == [[b"a"], [b"b"]], 5.0, "the second job")
    await eventually(lambda: not loop._under_way and not loop._shares, 5.0, "nothing to be kept")
    assert [delivery.answers for delivery in deliveries] == [["ack"]] * 2
    stop.set()
    bus.over.set()
    await asyncio.wait_for(running, 5)


async def test_a_loop_that_is_cancelled_ends_its_jobs_and_begins_no_others(
    eventually: Any,
) -> None:
    bus = _Quiet()
    loop = _Loop(bus, max_under_way=1)
    for content in (b"a", b"b"):
        bus.messages.put_nowait(_Delivery(content))
    running = asyncio.create_task(loop.run(asyncio.Event()))
    await eventually(lambda: loop.batches == [[b"a"]], 5.0)
    jobs = list(loop._under_way)
    running.cancel()
    await asyncio.wait([running], timeout=5)
    await asyncio.wait(jobs, timeout=5)
    assert all(job.cancelled() for job in jobs)
    assert loop.batches == [[b"a"]] and not loop._under_way


async def test_a_mistake_in_a_batch_returns_all_of_its_messages() -> None:
    bus = _Bus()
    loop = _Loop(bus, max_under_way=2, batched=True)
    for delivery in await _run(loop, bus, b"mistake", b"b"):
        assert delivery.answers == ["nak 0.5"]


async def test_a_stop_closes_the_consumer_before_messages_are_returned_to_it(
    eventually: Any,
) -> None:
    bus, stop, notes = _Quiet(), asyncio.Event(), list[str]()
    loop = _Loop(bus, max_under_way=1)

    class Noted(_Delivery):
        async def nak(self, delay_s: float) -> None:
            notes.append("returned")

    async def close() -> None:
        notes.append("closed")

    bus.close = close  # type: ignore[method-assign]
    for content in (b"a", b"b"):
        bus.messages.put_nowait(Noted(content))
    running = asyncio.create_task(loop.run(stop))
    await eventually(lambda: loop.batches == [[b"a"]], 5.0)
    stop.set()
    bus.over.set()
    await eventually(lambda: "returned" in notes, 5.0)
    loop.go.set()
    await asyncio.wait_for(running, 5)
    assert notes == ["closed", "returned"]
