"""A loop that hangs is late; one that waits for work, or for a broker that is away, is not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.errors import DeadlineMissed, TemporaryError
from banyan.plugins import LeafMark
from banyan.tree import Leaf
from services.chassis.messaging import subjects
from services.rollout.clients import blobs, messages, publisher
from services.rollout.clients.blobs import Blobs
from services.rollout.clients.publisher import Publisher
from services.rollout.node import heartbeat, lease_renewal
from services.rollout.node.active_trees import ActiveTrees
from services.rollout.node.heartbeat import Heartbeat
from services.rollout.node.lease_renewal import LeaseRenewer
from tests.liveness import Clock
from tests.rollout.world import RUN, world

LEAF = messages.leaf("run", b"t" * 32, 1, LeafMark(Leaf(b"s" * 32, 3), "stop"), "")


@contextlib.asynccontextmanager
async def beside(loop: Awaitable[None]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(loop)
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()


class Hangs:
    """A call that is answered three times, each after 100 s on the clock, and then never."""

    def __init__(self, clock: Clock, answer: Any = None, error: Exception | None = None) -> None:
        self.clock, self._answer, self._error, self.calls, self.hanging = (
            clock,
            answer,
            error,
            0,
            asyncio.Event(),
        )

    async def __call__(self, *_: object, **__: object) -> Any:
        self.calls += 1
        if self.calls > 3:
            self.hanging.set()
            await asyncio.Event().wait()
        self.clock.now += 100.0
        await asyncio.sleep(0)
        if self._error:
            raise self._error
        return self._answer


async def test_a_publisher_that_hangs_is_late_and_one_with_nothing_to_send_or_no_broker_is_not(
    monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(publisher, "_REST_S", 0.01)
    clock, away, sent = Clock(), list[str](), asyncio.Event()
    publish = Hangs(clock, error=DeadlineMissed("the broker is away"))
    bus: Any = SimpleNamespace(publish=publish)
    loop = Publisher(bus, lambda: away.append(loop.pulse.late))
    loop.pulse._clock = clock
    async with beside(loop.run()):
        clock.now += 1e6
        assert not loop.pulse.late
        await loop.put(LEAF, sent)
        await asyncio.wait_for(publish.hanging.wait(), 10)
        assert away == ["", "", ""] and not loop.pulse.late  # 300 s without a broker
        clock.now += 121.0
        assert loop.pulse.late.startswith("sending: a try")


async def test_a_publisher_rests_once_all_is_sent(
    monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(publisher, "_REST_S", 0.01)
    clock, sent = Clock(), asyncio.Event()
    loop = Publisher(SimpleNamespace(publish=Hangs(clock)))  # type: ignore[arg-type]
    loop.pulse._clock = clock
    async with beside(loop.run()):
        await loop.put(LEAF, sent)
        await loop.flush(10.0)
        await asyncio.sleep(0.01)
        clock.now += 1e6
        assert sent.is_set() and not loop.pulse.late


async def test_segments_that_are_not_passed_on_are_late_unless_the_broker_is_away(
    nats_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    clock, hanging, goes_on = Clock(), asyncio.Event(), asyncio.Event()
    async with world(nats_server.url, tmp_path / "state") as w:
        await w.begin()
        await w.policy(0)
        async with w.node() as node:
            receive = node.executor.receive
            passing, starting = node._pump_pulse, node._starter.pulse

            async def hang(samples: Any, is_turn: bool = False) -> None:
                if is_turn:
                    hanging.set()
                    await goes_on.wait()
                await receive(samples, is_turn)

            monkeypatch.setattr(node.executor, "receive", hang)
            passing._clock = starting._clock = clock
            clock.now += 1e6
            assert not passing.late  # nothing ends
            opened = await w.open(1)
            await asyncio.wait_for(hanging.wait(), 10)
            await eventually(lambda: starting._state[2] < clock.now + 1801)
            clock.now += 3601.0
            assert passing.late.startswith("passing on: what ended")
            node._publisher._on_away()  # the broker has taken nothing
            assert not passing.late
            clock.now += 3601.0
            node.executor._reporter._blobs._on_away()  # the store has taken nothing
            assert not passing.late and not starting.late
            goes_on.set()
            await w.grown(opened)
            await eventually(lambda: not len(node.trees))
            node._publisher._on_away()
            clock.now += 1e6
            assert not passing.late  # nothing ends any more, so there is no deadline


async def test_a_large_segment_reports_each_time_that_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blobs, "_RETRY_S", 0.01)
    monkeypatch.setattr(blobs, "MAX_MESSAGE_BYTES", 0)
    clock, away = Clock(), list[int]()
    put = Hangs(clock, error=TemporaryError("away"))
    grown = messages.events_pb2.SegmentsGrown(
        segments=[messages.events_pb2.GrownSegment(claim_epoch=1)]
    )
    store: Any = SimpleNamespace(put_blob=put)
    loop = Blobs(store, lambda: away.append(put.calls))
    task = asyncio.ensure_future(loop.move_large_segments(messages.Event("s", grown, "id", "")))
    await asyncio.wait_for(put.hanging.wait(), 10)
    task.cancel()
    assert away == [1, 2, 3]


async def test_a_presence_that_hangs_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.001)
    clock = Clock()
    present = Hangs(clock)
    store: Any = SimpleNamespace(present=present)
    loop = Heartbeat(store, ActiveTrees(4, 4), joined=False)
    loop.pulse._clock = clock
    async with beside(loop.run()):
        await asyncio.wait_for(present.hanging.wait(), 10)
        assert not loop.pulse.late
        clock.now += 121.0
        assert loop.pulse.late


async def test_renewals_that_hang_are_late_but_not_while_the_engine_loads(
    monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(lease_renewal, "EVERY_S", 0.001)
    clock, loads, asked = Clock(), asyncio.Event(), asyncio.Event()
    renew = Hangs(clock)

    async def stats() -> Any:
        asked.set()
        await loads.wait()
        return SimpleNamespace(steps=0)

    async def in_progress() -> None:
        return None

    tree = SimpleNamespace(
        is_growing=False,
        is_finishing=False,
        progressed_at=float("inf"),
        epoch=1,
        spec=SimpleNamespace(tree_id=b"t"),
        delivery=SimpleNamespace(in_progress=in_progress),
    )
    trees, nothing = [tree], None
    loop = LeaseRenewer(
        SimpleNamespace(renew=renew),  # type: ignore[arg-type]
        SimpleNamespace(stats=stats),  # type: ignore[arg-type]
        trees,  # type: ignore[arg-type]
        executor=nothing,  # type: ignore[arg-type]
        segment_deadline_s=1.0,
    )
    loop.pulse._clock = clock
    async with beside(loop.run()):
        await asyncio.wait_for(asked.wait(), 10)
        clock.now += 1e6
        assert not loop.pulse.late
        loads.set()
        await asyncio.wait_for(renew.hanging.wait(), 10)
        assert not loop.pulse.late
        clock.now += 3601.0
        assert loop.pulse.late.startswith("claims: renewals")


async def test_a_poll_of_the_policies_that_hangs_is_late(
    nats_server: Any, tmp_path: Path, eventually: Any
) -> None:
    clock = Clock()
    async with world(nats_server.url, tmp_path / "state") as w:
        await w.begin()
        await w.policy(0)
        async with w.node() as node:
            poll, pulse = Hangs(clock), node._watch.pulse
            node.refresher.poll = poll  # type: ignore[method-assign]
            pulse._clock = clock
            for step in (1, 2, 3, 4):  # each event triggers a poll
                await w.bus.publish(
                    subjects.train(RUN, "policy"), messages.events_pb2.PolicyPublished(), str(step)
                )
                await eventually(lambda step=step: poll.calls >= step)
            assert poll.hanging.is_set() and not pulse.late
            clock.now += 181.0
            assert pulse.late
