"""A loop of a node that hangs is late; one that waits for work, or for a broker that is away, is not."""

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
from services.rollout.node.active_trees import Trees
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
    """A call that is answered a few times, each after 100 s on the clock, and then never."""

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
    made = Publisher(SimpleNamespace(publish=publish), lambda: away.append(made.pulse.late))  # type: ignore[arg-type]
    made.pulse._clock = clock
    async with beside(made.run()):
        clock.now += 1e6
        assert not made.pulse.late
        await made.put(LEAF, sent)
        await asyncio.wait_for(publish.hanging.wait(), 10)
        assert away == ["", "", ""] and not made.pulse.late  # 300 s without a broker
        clock.now += 121.0
        assert made.pulse.late.startswith("sending: a try")


async def test_a_publisher_rests_once_all_is_sent(
    monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(publisher, "_REST_S", 0.01)
    clock, sent = Clock(), asyncio.Event()
    made = Publisher(SimpleNamespace(publish=Hangs(clock)))  # type: ignore[arg-type]
    made.pulse._clock = clock
    async with beside(made.run()):
        await made.put(LEAF, sent)
        await made.flush(10.0)
        await asyncio.sleep(0.01)
        clock.now += 1e6
        assert sent.is_set() and not made.pulse.late


async def test_what_ended_and_is_not_passed_on_is_late_unless_the_broker_is_away(
    nats_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    clock, hanging, goes_on = Clock(), asyncio.Event(), asyncio.Event()
    async with world(nats_server.url, tmp_path / "state") as w:
        await w.begin()
        await w.policy(0)
        async with w.node() as node:
            digest = node._digest

            async def hangs(batch: Any, turn: bool = False) -> None:
                if turn:
                    hanging.set()
                    await goes_on.wait()
                await digest(batch, turn)

            monkeypatch.setattr(node, "_digest", hangs)
            node._passed._clock = node._started._clock = clock
            clock.now += 1e6
            assert not node._passed.late  # nothing ends
            opened = await w.open(1)
            await asyncio.wait_for(hanging.wait(), 10)
            await eventually(lambda: node._started._state[2] < clock.now + 1801)
            clock.now += 3601.0
            assert node._passed.late.startswith("passing on: what ended")
            node._publisher._away()  # the broker has taken nothing
            assert not node._passed.late
            clock.now += 3601.0
            node._teller._blobs._away()  # the store has taken nothing
            assert not node._passed.late and not node._started.late
            goes_on.set()
            await w.grown(opened)
            await eventually(lambda: not len(node.trees))
            node._publisher._away()
            clock.now += 1e6
            assert not node._passed.late  # nothing ends any more, and who is away makes no work


async def test_a_large_segment_says_each_time_that_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blobs, "_AGAIN_S", 0.01)
    monkeypatch.setattr(blobs, "MAX_MESSAGE_BYTES", 0)
    clock, away = Clock(), list[int]()
    put = Hangs(clock, error=TemporaryError("away"))
    grown = messages.events_pb2.SegmentsGrown(
        segments=[messages.events_pb2.GrownSegment(claim_epoch=1)]
    )
    made = Blobs(SimpleNamespace(put_blob=put), lambda: away.append(put.calls))  # type: ignore[arg-type]
    task = asyncio.ensure_future(made.light(messages.Event("s", grown, "id", "")))
    await asyncio.wait_for(put.hanging.wait(), 10)
    task.cancel()
    assert away == [1, 2, 3]


async def test_a_presence_that_hangs_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.001)
    clock = Clock()
    present = Hangs(clock)
    made = Heartbeat(SimpleNamespace(present=present), Trees(4, 4), joined=False)  # type: ignore[arg-type]
    made.pulse._clock = clock
    async with beside(made.run()):
        await asyncio.wait_for(present.hanging.wait(), 10)
        assert not made.pulse.late
        clock.now += 121.0
        assert made.pulse.late


async def test_renewals_that_hang_are_late_and_an_engine_that_loads_for_hours_is_not_theirs(
    monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(lease_renewal, "EVERY_S", 0.001)
    clock, loads, asked = Clock(), asyncio.Event(), asyncio.Event()
    renew = Hangs(clock)

    async def stats() -> Any:
        asked.set()
        await loads.wait()
        return SimpleNamespace(steps=0)

    live = SimpleNamespace(
        started=False,
        finishing=False,
        touched=float("inf"),
        epoch=1,
        spec=SimpleNamespace(tree_id=b"t"),
        delivery=None,
    )

    async def in_progress() -> None:
        return None

    live.delivery = SimpleNamespace(in_progress=in_progress)
    made = LeaseRenewer(
        SimpleNamespace(renew=renew), SimpleNamespace(stats=stats), [live], None, 1.0
    )  # type: ignore[arg-type]
    made.pulse._clock = clock
    async with beside(made.run()):
        await asyncio.wait_for(asked.wait(), 10)
        clock.now += 1e6
        assert not made.pulse.late
        loads.set()
        await asyncio.wait_for(renew.hanging.wait(), 10)
        assert not made.pulse.late
        clock.now += 3601.0
        assert made.pulse.late.startswith("claims: renewals")


async def test_a_look_at_the_policies_that_hangs_is_late(
    nats_server: Any, tmp_path: Path, eventually: Any
) -> None:
    clock = Clock()
    async with world(nats_server.url, tmp_path / "state") as w:
        await w.begin()
        await w.policy(0)
        async with w.node() as node:
            look = Hangs(clock)
            node.refresher.look = look  # type: ignore[method-assign]
            node._looked._clock = clock
            for step in (1, 2, 3, 4):  # each says look again
                await w.bus.publish(
                    subjects.train(RUN, "policy"), messages.events_pb2.PolicyPublished(), str(step)
                )
                await eventually(lambda step=step: look.calls >= step)
            assert look.hanging.is_set() and not node._looked.late
            clock.now += 181.0
            assert node._looked.late
