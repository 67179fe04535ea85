"""A joined node ends with its run, or says that nothing is heard of it; a launched one waits for its launcher."""

import asyncio
import contextlib

import pytest

from banyan.errors import DeadlineMissed, NotFound, TemporaryError
from banyan.v1 import runstore_service_pb2 as rs
from services.rollout.node import heartbeat
from services.rollout.node.active_trees import Trees
from services.rollout.node.heartbeat import Heartbeat


class _Store:
    def __init__(self) -> None:
        self.state = rs.RUN_STATE_TRAINING
        self.error: Exception | None = None
        self.told: list[bool] = []
        self.looks = 0

    async def present(self, trees: int, leaving: bool = False) -> None:
        if self.error:
            raise self.error
        self.told.append(leaving)

    async def run(self) -> rs.Run:
        self.looks += 1
        if self.error:
            raise self.error
        return rs.Run(state=self.state)


@pytest.fixture
def store(monkeypatch) -> _Store:
    monkeypatch.setattr(heartbeat, "LOOK_S", 0.01)
    return _Store()


@contextlib.asynccontextmanager
async def running(made: Heartbeat):
    task = asyncio.create_task(made.run())
    try:
        yield task
    finally:
        task.cancel()


@pytest.mark.parametrize(
    "state", [rs.RUN_STATE_SUCCEEDED, rs.RUN_STATE_FAILED, rs.RUN_STATE_CANCELLED]
)
async def test_a_joined_node_sees_the_end(store, state, eventually) -> None:
    made = Heartbeat(store, Trees(4, 4), joined=True)
    async with running(made):
        await eventually(lambda: store.looks > 3)
        assert not made.over.is_set() and store.told == [False]  # looks often, tells seldom
        store.state = rs.RUN_STATE_PAUSED
        looks = store.looks
        await eventually(lambda: store.looks > looks + 2)
        assert not made.over.is_set()
        store.state = state
        await eventually(made.over.is_set)
    await made.leave()
    assert store.told == [False, True]


async def test_a_joined_node_that_hears_nothing_says_so(store, monkeypatch) -> None:
    monkeypatch.setattr(heartbeat, "GONE_S", 0.1)
    store.error = TemporaryError("away")
    with pytest.raises(DeadlineMissed, match="join again when it goes on"):
        await asyncio.wait_for(Heartbeat(store, Trees(4, 4), joined=True).run(), 5.0)


async def test_a_launched_node_leaves_the_end_to_its_launcher(
    store, monkeypatch, eventually
) -> None:
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.01)
    monkeypatch.setattr(heartbeat, "GONE_S", 0.0)
    store.state = rs.RUN_STATE_SUCCEEDED
    made = Heartbeat(store, Trees(4, 4), joined=False)
    async with running(made) as task:
        await eventually(lambda: len(store.told) > 2)
        store.error = TemporaryError("away")
        told = len(store.told)
        store.error = None
        await eventually(lambda: len(store.told) > told)
        assert not task.done() and not made.over.is_set() and store.looks == 0


async def test_leaving_is_no_matter_of_life_and_death(store) -> None:
    store.error = NotFound("no such run")
    await Heartbeat(store, Trees(4, 4), joined=True).leave()
