"""A joined node ends with its run, or when the store is silent; a launched one does neither."""

import asyncio
import contextlib

import pytest

from banyan.errors import DeadlineMissed, NotFound, TemporaryError
from banyan.policy import PolicyVersion
from banyan.v1 import runstore_service_pb2 as rs
from services.rollout.engines.port import EngineStats
from services.rollout.node import heartbeat
from services.rollout.node.active_trees import ActiveTrees
from services.rollout.node.heartbeat import Heartbeat, load_of
from services.rollout.ports import Load


class _Store:
    def __init__(self) -> None:
        self.state = rs.RUN_STATE_TRAINING
        self.error: Exception | None = None
        self.reports: list[bool] = []
        self.loads: list[Load] = []
        self.polls = 0

    async def present(self, trees: int, load: Load, leaving: bool = False) -> None:
        if self.error:
            raise self.error
        self.reports.append(leaving)
        self.loads.append(load)

    async def run(self) -> rs.Run:
        self.polls += 1
        if self.error:
            raise self.error
        return rs.Run(state=self.state)


@pytest.fixture
def store(monkeypatch) -> _Store:
    monkeypatch.setattr(heartbeat, "POLL_S", 0.01)
    return _Store()


def beating(store: _Store, joined: bool) -> Heartbeat:
    return Heartbeat(store, ActiveTrees(4, 4), joined)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def running(beats: Heartbeat):
    task = asyncio.create_task(beats.run())
    try:
        yield task
    finally:
        task.cancel()


@pytest.mark.parametrize(
    "state", [rs.RUN_STATE_SUCCEEDED, rs.RUN_STATE_FAILED, rs.RUN_STATE_CANCELLED]
)
async def test_a_joined_node_sees_the_end(store, state, eventually) -> None:
    beats = beating(store, joined=True)
    async with running(beats):
        await eventually(lambda: store.polls > 3)
        assert not beats.over.is_set() and store.reports == [False]  # polls often, reports seldom
        store.state = rs.RUN_STATE_PAUSED
        polls = store.polls
        await eventually(lambda: store.polls > polls + 2)
        assert not beats.over.is_set()
        store.state = state
        await eventually(beats.over.is_set)
    await beats.leave()
    assert store.reports == [False, True]


async def test_a_joined_node_ends_when_the_store_is_silent(store, monkeypatch) -> None:
    monkeypatch.setattr(heartbeat, "SILENCE_S", 0.1)
    store.error = TemporaryError("away")
    with pytest.raises(DeadlineMissed, match="join again when it goes on"):
        await asyncio.wait_for(beating(store, joined=True).run(), 5.0)


async def test_a_launched_node_leaves_the_end_to_its_launcher(
    store, monkeypatch, eventually
) -> None:
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.01)
    monkeypatch.setattr(heartbeat, "SILENCE_S", 0.0)
    store.state = rs.RUN_STATE_SUCCEEDED
    beats = beating(store, joined=False)
    async with running(beats) as task:
        await eventually(lambda: len(store.reports) > 2)
        store.error = TemporaryError("away")
        reports = len(store.reports)
        store.error = None
        await eventually(lambda: len(store.reports) > reports)
        assert not task.done() and not beats.over.is_set() and store.polls == 0


async def test_a_failure_to_leave_is_ignored(store) -> None:
    store.error = NotFound("no such run")
    await beating(store, joined=True).leave()


async def test_it_reports_what_the_engine_has_decoded(store, monkeypatch, eventually) -> None:
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.01)
    seen = EngineStats(steps=10, sampled_tokens=25)
    trees = ActiveTrees(4, 4)
    beats = Heartbeat(store, trees, False, lambda: load_of(seen, 4))  # type: ignore[arg-type]
    async with running(beats):
        await eventually(lambda: len(store.loads) > 1)
        seen = EngineStats(steps=12, sampled_tokens=33)
        await eventually(lambda: store.loads[-1] == Load(decoded=33, slots=48))
    assert store.loads[0] == Load(decoded=25, slots=40)


def test_a_load_names_the_policy_that_is_loaded() -> None:
    loaded = PolicyVersion(1, 7, b"\1" * 32)
    assert load_of(EngineStats(), 4).policy_step is None
    assert load_of(EngineStats(), 4, loaded).policy_step == 7
