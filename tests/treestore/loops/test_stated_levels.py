"""Levels of a real store, as Prometheus reads them: each number under its name and its labels."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.process import telemetry
from services.chassis.process.telemetry import metrics
from services.chassis.rpc import rpc
from services.treestore.control import members
from services.treestore.loops import levels
from services.treestore.loops.levels import Levels
from tests.treestore.client import Store, served


class Read:
    """What a reader of metrics gets."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self._reader = reader

    def __call__(self, name: str, label: str = "banyan.run") -> dict[str, float]:
        """Return the values of a metric by a label."""
        data = self._reader.get_metrics_data()
        return {
            str(point.attributes[label]): float(point.value)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        }


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    reader = InMemoryMetricReader()
    monkeypatch.setattr(telemetry.active, "meter", MeterProvider([reader]).get_meter("test"))
    monkeypatch.setattr(metrics, "_instruments", {})
    monkeypatch.setattr(metrics, "_levels", {})
    monkeypatch.setattr(levels, "EVERY_S", 0.05)
    return Read(reader)


@pytest.fixture
async def store(nats_server: Any, tmp_path: Path, read: Read) -> AsyncIterator[Store]:
    async with served(nats_server.url, tmp_path / "state") as store:
        yield store


async def test_a_runs_levels_are_those_of_its_trees_and_nodes(
    store: Store, read: Read, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge, run = store.forge, store.forge.run_id
    await store.grow(forge.spec(0))
    await store.publish(forge.opened(forge.spec(1)), forge.opened(forge.spec(2)))
    await store.claim(forge.spec(2).tree_id)
    for node, leaving in (("a", False), ("b", False), ("b", True)):
        member = rs.Member(node_id=node, run_id=run)
        await rpc.call(store.runs.PutMember, rs.PutMemberRequest(member=member, leaving=leaving))
    wanted = {"growing": 2.0, "scoring": 0.0, "closed": 1.0}
    await eventually(lambda: read("banyan.trees.held", "banyan.state") == wanted)
    await eventually(lambda: read("banyan.members") == {run: 1.0})
    assert read("banyan.run.step") == {run: 0.0}
    assert set(read("banyan.run.step_age")) == {run}
    monkeypatch.setattr(members, "PRESENT_MS", -1)
    await eventually(lambda: read("banyan.members") == {run: 0.0}, what="a silent node is absent")


async def test_what_waits_is_stated_by_its_queue(store: Store, read: Read, eventually: Any) -> None:
    letter = events_pb2.DeadLetter(stream="LINEAGE", sequence=1, payload=b"x", service="treestore")
    await store.bus.publish("dead.LINEAGE", letter, "dead-1")
    await eventually(lambda: read("banyan.store.waiting", "banyan.queue").get("dead") == 1.0)
    assert read("banyan.store.waiting", "banyan.queue").keys() == {"outbox", "parked", "dead"}
    await eventually(lambda: read("banyan.log.bytes", "banyan.queue").get("DEAD", 0) > 0)
    await eventually(lambda: "LINEAGE/treestore" in read("banyan.log.waiting", "banyan.queue"))


class Bus:
    """A broker with a consumer that is behind; away at first."""

    def __init__(self) -> None:
        self.asked = 0

    async def state(self, stream: str) -> Any:
        self.asked += 1
        if self.asked == 1:
            raise nats.errors.NoServersError
        return SimpleNamespace(bytes=7)

    async def depths(self, stream: str) -> list[Any]:
        return [SimpleNamespace(consumer="verifier", waiting=3, unacknowledged=2)]


class Away:
    """A store in which nothing can be read."""

    def now(self) -> int:
        return 0

    async def read(self, work: Any) -> None:
        pass


async def test_messages_under_way_wait_too_and_a_broker_that_is_away_ends_nothing(
    read: Read, eventually: Any
) -> None:
    away: Any = Away()
    away.database, bus = away, Bus()
    loop = asyncio.create_task(Levels(away, bus).run())  # type: ignore[arg-type]
    try:
        await eventually(
            lambda: read("banyan.log.waiting", "banyan.queue").get("LINEAGE/verifier") == 5.0
        )
        assert not loop.done()
    finally:
        loop.cancel()


async def test_of_evaluations_the_newest_counts(
    read: Read, monkeypatch: pytest.MonkeyPatch, world: Any
) -> None:
    evals = [
        rs.EvalProgress(label=f"{when}-greedy", groups=2, done=2, scored=2, reward_sum=total)
        for when, total in (("before", 0.5), ("step-3", 2.0))
    ]
    answer = rs.ReadProgressResponse(evals=evals)
    monkeypatch.setattr(levels.progress, "read", lambda *_: answer)
    away: Any = Away()
    stated = partial(Levels(away, away)._state_store, world.now())
    world.database.query(stated)
    assert read("banyan.run.held_out_reward") == {world.forge.run_id: 1.0}
