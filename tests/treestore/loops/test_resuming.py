"""A run that failed and is resumed while the store removes the messages that the broker holds of
it.
"""

import asyncio
import concurrent.futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.messaging import assignments, subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.objects import object_store
from services.chassis.messaging.objects.object_store import Bucket
from services.chassis.rpc import rpc
from services.treestore.api.run_service import RunStoreService
from services.treestore.loops import maintenance
from services.treestore.unit_of_work.load import OVER
from tests.treestore.client import Store, served


async def _move(store: Store, from_state: rs.RunState, to_state: rs.RunState) -> None:
    move = rs.MoveRunRequest(
        run_id=store.forge.run_id, gateway_epoch=1, from_state=from_state, to_state=to_state
    )
    await rpc.call(store.runs.MoveRun, move)


async def _queue_is_there(store: Store) -> bool:
    return subjects.growth_durable(store.forge.run_id) in await store.bus.ack_floors(
        subjects.GROWTH
    )


async def test_a_run_that_is_taken_back_has_its_queue_again(
    nats_server: Any, tmp_path: Path, eventually: Any
) -> None:
    async with served(nats_server.url, tmp_path / "state", purge_s=0.1) as store:
        kept = await assignments.queue(
            store.bus, store.forge.run_id
        )  # of a node that lives through all of it
        await store.publish(store.forge.opened(store.forge.spec()))
        await eventually(lambda: _queued(store, [subjects.growth(store.forge.run_id)]))
        await _move(store, rs.RUN_STATE_TRAINING, rs.RUN_STATE_FAILED)
        await eventually(lambda: _queued(store, []))
        await eventually(lambda: _gone(store))
        await _move(store, rs.RUN_STATE_FAILED, rs.RUN_STATE_TRAINING)
        (delivery,) = await _taken(kept)  # which makes it again
        assert delivery.decode(events_pb2.GrowTree).tree_id == store.forge.spec().tree_id
        await asyncio.sleep(0.5)  # after some checks of the store
        assert await _queue_is_there(store)


async def _queued(store: Store, expected: list[str]) -> bool:
    return await store.bus.subjects_of(subjects.GROWTH) == expected


async def _gone(store: Store) -> bool:
    return not await _queue_is_there(store)


async def _taken(queue: Any) -> list[Any]:
    for _ in range(10):
        if deliveries := await queue.fetch(1, 2.0):
            return list(deliveries)
    raise AssertionError("the tree was not queued again")


async def _make_queue(store: Store) -> None:
    await assignments.queue(store.bus, store.forge.run_id)


async def _make_bucket(store: Store) -> None:
    await Bucket(store.bus.client, subjects.weights_bucket(store.forge.run_id)).ensure(1 << 20)


async def _bucket_is_there(store: Store) -> bool:
    return subjects.weights_bucket(store.forge.run_id) in await object_store.names(store.bus.client)


@pytest.mark.parametrize(
    ("make", "is_there"),
    [(_make_queue, _queue_is_there), (_make_bucket, _bucket_is_there)],
    ids=["queue", "weights"],
)
async def test_what_a_run_makes_as_it_is_taken_back_is_not_taken_away(
    nats_server: Any,
    tmp_path: Path,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
    make: Any,
    is_there: Any,
) -> None:
    """It is resumed right after the store saw that it was over."""
    loop, over, resumed = asyncio.get_running_loop(), maintenance.runs.is_over, list[Any]()

    async def resume(store: Store) -> None:
        await _move(store, rs.RUN_STATE_FAILED, rs.RUN_STATE_TRAINING)
        await make(store)

    async with served(nats_server.url, tmp_path / "state", purge_s=0.1) as store:

        def slow(*words: Any) -> bool:
            is_over = over(*words)
            if is_over and not resumed:
                resumed.append(asyncio.run_coroutine_threadsafe(resume(store), loop))
                concurrent.futures.wait(resumed, 1.0)  # unless it waits for the removal
            return is_over

        monkeypatch.setattr(maintenance.runs, "is_over", slow)
        await make(store)
        await _move(store, rs.RUN_STATE_TRAINING, rs.RUN_STATE_FAILED)
        await eventually(lambda: resumed and resumed[0].done())
        resumed[0].result()
        await asyncio.sleep(0.5)  # after some checks of the store
        assert await is_there(store)


@pytest.mark.parametrize(
    ("make", "is_there"),
    [(_make_queue, _queue_is_there), (_make_bucket, _bucket_is_there)],
    ids=["queue", "weights"],
)
async def test_a_run_is_not_taken_back_until_what_is_left_of_it_is_gone(
    nats_server: Any,
    tmp_path: Path,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
    make: Any,
    is_there: Any,
) -> None:
    """It is taken back as the store takes it away."""
    resumed, said = list[asyncio.Task[None]](), list[str]()

    async with served(nats_server.url, tmp_path / "state", purge_s=0.1) as store:

        async def resume() -> None:
            await _move(store, rs.RUN_STATE_FAILED, rs.RUN_STATE_TRAINING)
            said.append("taken back")
            await make(store)

        def slow(real: Any) -> Any:
            async def take_away(*words: Any) -> None:
                if not resumed:
                    resumed.append(asyncio.create_task(resume()))
                    await asyncio.wait(
                        resumed, timeout=1.0
                    )  # unless it waits for what the store does here
                    said.append("taken away")
                await real(*words)

            return take_away

        monkeypatch.setattr(Bus, "delete_consumer", slow(Bus.delete_consumer))
        monkeypatch.setattr(object_store, "delete", slow(object_store.delete))
        await make(store)
        await _move(store, rs.RUN_STATE_TRAINING, rs.RUN_STATE_FAILED)
        await eventually(lambda: resumed and resumed[0].done())
        resumed[0].result()
        assert said == ["taken away", "taken back"]
        assert await is_there(store)


async def test_only_what_takes_a_run_back_waits_for_what_is_cleared_away() -> None:
    async def write(_: Any) -> rs.Run:
        return rs.Run()

    context: Any = SimpleNamespace(
        clearing=asyncio.Lock(), now=lambda: 0, settings=None, database=None, write=write
    )
    control, call = RunStoreService(context), None

    def moved(from_state: rs.RunState, to_state: rs.RunState) -> "asyncio.Task[Any]":
        request = rs.MoveRunRequest(from_state=from_state, to_state=to_state)
        return asyncio.create_task(control.MoveRun(request, call))  # type: ignore[arg-type]

    async with context.clearing:
        await asyncio.wait_for(moved(rs.RUN_STATE_TRAINING, rs.RUN_STATE_FAILED), 5.0)
        waiting = [moved(state, rs.RUN_STATE_TRAINING) for state in OVER]
        await asyncio.wait_for(moved(rs.RUN_STATE_PAUSED, rs.RUN_STATE_TRAINING), 5.0)
        assert not any(task.done() for task in waiting)
    await asyncio.wait_for(asyncio.gather(*waiting), 5.0)
