"""Answers that end their scores, from the log through verifier and store to the group's rewards."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from banyan.wire.segments import facts_from_wire, leaf_from_wire, rewards_from_wire
from services.chassis.rpc import rpc
from services.verifier.consumer import LeafConsumer
from services.verifier.handlers import LeafHandler
from services.verifier.publisher import BusPublisher
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.scoring import Scoring
from services.verifier.store import GrpcStore
from tests.treestore.client import Store, served

SCORER = "deeds:deed"
RECIPE = {
    "name": "test",
    "model": "tiny",
    "task": {"name": "arithmetic"},
    "filter": [{"name": SCORER}],
    "eval": {"filter": [{"name": "number"}]},
}
REWARDS = {"is_right": 1.0, "is_wrong": 0.0, "spins": 0.0, "eats": 0.0, "vanishes": 0.0}
CAUSES = {"spins": {"cpu": 1.0}, "eats": {"memory": 1.0}, "vanishes": {"exited": 1.0}}


async def put_run(store: Store) -> None:
    """Store a run whose scorer does what completions say."""
    store.forge.run_id = "deed-00000001"
    run = store.forge.run()
    run.recipe_json = json.dumps(RECIPE)
    epoch = await rpc.call(store.runs.TakeGatewayEpoch, rs.TakeGatewayEpochRequest(gateway_id="g"))
    request = rs.PutRunRequest(run=run, request_id="deed", gateway_epoch=epoch.epoch)
    await rpc.call(store.runs.PutRun, request)
    await store.publish(store.forge.opened(spec_of(store), epoch.epoch))


def spec_of(store: Store) -> tree_pb2.TreeSpec:
    return store.forge.spec(scorers=[SCORER], score_deadline_ms=60_000)


async def grow(store: Store) -> bytes:
    """Grow a tree with one leaf for each deed, and one that its scorer cannot read."""
    spec, forge = spec_of(store), store.forge
    epoch, root = await store.claim(spec.tree_id), forge.root(spec)
    leaves = [forge.child(root, n, text=text) for n, text in enumerate([*REWARDS, "raises"])]
    await store.publish(
        forge.segments(root, *leaves, epoch=epoch),
        *(forge.leaf(leaf, epoch=epoch) for leaf in leaves),
        forge.grown(spec.tree_id, *leaves, epoch=epoch),
    )
    return spec.tree_id


async def read(store: Store, tree_id: bytes) -> tree_pb2.Tree:
    return (await rpc.call(store.trees.GetTree, ts.GetTreeRequest(tree_id=tree_id))).tree


async def test_an_answer_that_ends_its_score_stays_in_its_group_with_no_more_than_a_wrong_one(
    nats_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    """With a real broker, treestore and children, which take some seconds.

    The deadline is long enough for a busy machine: who gets no core does not use up its time.
    """
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    async with served(nats_server.url, tmp_path, begin=False) as store:
        await put_run(store)
        tree_id = await grow(store)
        stored, stop = GrpcStore(store.channel), asyncio.Event()
        scoring = Scoring(Pool(Limits(deadline_s=2.0, memory_mb=256)))
        handler = LeafHandler(stored, BusPublisher(store.bus), scoring, "v1")
        scores = asyncio.create_task(LeafConsumer(store.bus, stored, handler, 16).run(stop))

        async def closed() -> bool:
            return (await read(store, tree_id)).state == tree_pb2.TREE_STATE_CLOSED

        await eventually(closed, 30.0, "the end of the tree")
        tree = await read(store, tree_id)
        stop.set()
        await scores
        await scoring.close()
    texts = {segment.id: segment.text for segment in tree.segments}
    rewards = rewards_from_wire(tree.scores, 1)
    assert {texts[leaf.segment]: rewards[leaf] for leaf in rewards} == REWARDS | {"raises": None}
    parts = facts_from_wire(tree).parts
    assert {texts[leaf.segment]: parts[leaf] for leaf in parts} == CAUSES
    (raised,) = [s for s in tree.scores if texts[leaf_from_wire(s.leaf).segment] == "raises"]
    assert raised.score.reason.startswith("EXCEPTION: ValueError: cannot be read (deeds.py")
