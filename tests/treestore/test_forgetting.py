"""Messages that the broker holds of a run that is removed or over go; those of other runs stay."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from banyan.v1 import events_pb2
from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.objects import object_store
from services.chassis.messaging.objects.object_store import Bucket
from services.chassis.rpc import rpc
from tests.treestore.client import Store, served

_LIVE = "live-00000002"
_STREAMS = (subjects.LINEAGE, subjects.TRAIN, subjects.GROWTH)


@pytest.fixture
async def bus(nats_server: Any) -> AsyncIterator[Bus]:
    """Yield a client that outlives the store."""
    client = await Bus.connect(nats_server.url, "test")
    yield client
    await client.close()


async def _fill(bus: Bus, run_id: str) -> set[str]:
    """Publish a message of the run on each stream, and weights in its bucket; return the names of
    all of them.
    """
    weights = Bucket(bus.client, subjects.weights_bucket(run_id))
    await weights.ensure(1 << 20)
    await weights.put("policy-1-0", iter([b"weights"]), {})
    messages = {
        subjects.lineage(run_id, "closed"),
        subjects.train(run_id, "batch"),
        subjects.growth(run_id),
    }
    for subject in messages:
        await bus.publish(subject, events_pb2.TreesClosed(), f"{subject}-1")
    return messages | {weights.name}


async def _held(bus: Bus) -> set[str]:
    """Return the subjects and buckets of which the broker holds anything."""
    return {name for stream in _STREAMS for name in await bus.subjects_of(stream)} | {
        *await object_store.names(bus.client)
    }


async def _two_runs(store: Store, bus: Bus) -> tuple[set[str], set[str]]:
    """Fill the broker for the store's first run, which is over then, and for another, which is not;
    return the names of both.
    """
    live = store.forge.run()
    live.run_id = _LIVE
    await rpc.call(
        store.runs.PutRun, rs.PutRunRequest(run=live, request_id="live", gateway_epoch=1)
    )
    filled = await _fill(bus, store.forge.run_id), await _fill(bus, _LIVE)
    ends = {"from_state": rs.RUN_STATE_TRAINING, "to_state": rs.RUN_STATE_CANCELLED}
    await rpc.call(
        store.runs.MoveRun, rs.MoveRunRequest(run_id=store.forge.run_id, gateway_epoch=1, **ends)
    )
    return filled


async def test_all_of_a_removed_run_goes(nats_server: Any, tmp_path: Path, bus: Bus) -> None:
    async with served(nats_server.url, tmp_path) as store:  # its first sweep is a minute away
        over, live = await _two_runs(store, bus)
        assert await _held(bus) == over | live
        await rpc.call(
            store.runs.RemoveRun, rs.RemoveRunRequest(run_id=store.forge.run_id, begin=True)
        )
        assert await _held(bus) == live


async def test_weights_and_assignments_of_a_run_that_is_over_go_in_time(
    nats_server: Any, tmp_path: Path, bus: Bus, eventually: Any
) -> None:
    async with served(nats_server.url, tmp_path, purge_s=0.1) as store:
        over, live = await _two_runs(store, bus)
        gone = {subjects.weights_bucket(store.forge.run_id), subjects.growth(store.forge.run_id)}

        async def cleared() -> bool:
            return await _held(bus) == (over - gone) | live

        await eventually(cleared)


async def test_a_store_that_ends_takes_weights_of_runs_that_are_over_with_it(
    nats_server: Any, tmp_path: Path, bus: Bus
) -> None:
    async with served(nats_server.url, tmp_path) as store:
        over, live = await _two_runs(store, bus)
    assert await _held(bus) == (over | live) - {subjects.weights_bucket(store.forge.run_id)}
