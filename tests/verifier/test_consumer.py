"""Leaves from a real nats-server, transcripts from a real gRPC server, scores back on the log."""

import asyncio
import contextlib
import json
from pathlib import Path

import grpc
import pytest

from banyan.errors import InvalidInput
from banyan.v1 import (
    events_pb2,
    runstore_service_pb2,
    runstore_service_pb2_grpc,
    tree_pb2,
    treestore_service_pb2,
    treestore_service_pb2_grpc,
)
from services.chassis import rpc, subjects
from services.chassis.bus import Bus
from services.verifier.consumer import LeafConsumer
from services.verifier.handlers import LeafHandler
from services.verifier.publisher import BusPublisher
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.scoring import Scoring
from services.verifier.store import GrpcStore

RUN = "test-00000000"
RECIPE = {"name": "test", "model": "tiny", "task": {"name": "arithmetic"}}


class TreeStore(treestore_service_pb2_grpc.TreeStoreServiceServicer):
    """The answers of a treestore, from what the test put in."""

    def __init__(self):
        self.completions = {}
        self.scorers = ["number"]
        self.epoch, self.state = 1, tree_pb2.TREE_STATE_SCORING
        self.down = False
        self.poison = b""
        self.scored = set()  # (segment, scorer): not owed any more
        self.reads = 0

    async def ReadLeaves(self, request, context):
        self.reads += 1
        if self.down:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "down")
        if any(key.leaf.end == 666 or key.leaf.segment == self.poison for key in request.leaves):
            raise InvalidInput("leaf 666 is poison")
        found = [self._transcript(k) for k in request.leaves if k.leaf.segment in self.completions]
        return treestore_service_pb2.ReadLeavesResponse(transcripts=found)

    def _transcript(self, key):
        return treestore_service_pb2.LeafTranscript(
            key=key,
            run_id=RUN,
            completion=self.completions[key.leaf.segment],
            row_json=json.dumps({"question": "3 + 4", "answer": 7}),
            scorers=[name for name in self.scorers if (key.leaf.segment, name) not in self.scored],
            traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01",
        )

    async def GetTree(self, request, context):
        spec = tree_pb2.TreeSpec(tree_id=request.tree_id, run_id=RUN)
        tree = tree_pb2.Tree(spec=spec, claim_epoch=self.epoch, state=self.state)
        return treestore_service_pb2.GetTreeResponse(tree=tree)


class RunStore(runstore_service_pb2_grpc.RunStoreServiceServicer):
    """One run."""

    def __init__(self):
        self.recipe = json.dumps(RECIPE)

    async def ReadRun(self, request, context):
        run = runstore_service_pb2.Run(run_id=request.run_id, recipe_json=self.recipe)
        return runstore_service_pb2.ReadRunResponse(run=run)


class World:
    """Everything around a verifier's consumer."""

    def __init__(self, bus, trees, runs, address):
        self.bus, self.trees, self.runs, self.address = bus, trees, runs, address
        self.scores: dict[bytes, list] = {}

    @contextlib.asynccontextmanager
    async def verifier(self):
        stop, channel = asyncio.Event(), rpc.channel(self.address)
        scoring = Scoring(Pool(Limits(deadline_s=2.0)))
        handler = LeafHandler(GrpcStore(channel), BusPublisher(self.bus), scoring, "v1")
        task = asyncio.create_task(LeafConsumer(self.bus, GrpcStore(channel), handler, 16).run(stop))
        try:
            yield task
        finally:
            stop.set()
            await asyncio.wait_for(task, 15)
            await scoring.close()
            await channel.close()

    async def leaf(self, number, *, end=3, epoch=1):
        (segment,) = await self.leaves(number, end=end, epoch=epoch)
        return segment

    async def leaves(self, *numbers, end=3, epoch=1):
        """One message of several leaves; their segments."""
        segments = [number.to_bytes(32, "big") for number in numbers]
        places = [tree_pb2.LeafRef(segment=segment, end=end) for segment in segments]
        said = [
            events_pb2.LeafFinished(run_id=RUN, tree_id=b"t" * 32, claim_epoch=epoch, leaf=place, reason="stop")
            for place in places
        ]
        message = events_pb2.LeavesFinished(leaves=said)
        await self.bus.publish(subjects.lineage(RUN, "leaf"), message, f"leaf-{numbers}-{end}-{epoch}")
        return segments

    async def collect(self):
        stream = [subjects.lineage(RUN, "score")]
        consumer = await self.bus.consumer(subjects.LINEAGE, "collector", stream)
        while True:
            for delivery in await consumer.fetch(64, 1.0):
                for event in delivery.decode(events_pb2.LeavesScored).scores:
                    self.scores.setdefault(event.scored.leaf.segment, []).append((event, delivery.traceparent))
                    self.trees.scored.add((event.scored.leaf.segment, event.scored.scorer))
                await delivery.ack()

    async def unacked(self):
        info = await self.bus._js.consumer_info(subjects.LINEAGE, "verifier")
        return info.num_pending + info.num_ack_pending


@pytest.fixture
async def world(nats_server):
    bus = await Bus.connect(nats_server.url, "test")
    await bus.ensure_streams()
    trees, runs = TreeStore(), RunStore()
    adders = [
        lambda s: treestore_service_pb2_grpc.add_TreeStoreServiceServicer_to_server(trees, s),
        lambda s: runstore_service_pb2_grpc.add_RunStoreServiceServicer_to_server(runs, s),
    ]
    server = await rpc.serve("127.0.0.1:0", adders, [])
    world = World(bus, trees, runs, server.address)
    collecting = asyncio.create_task(world.collect())
    yield world
    collecting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await collecting
    await server.stop(0)
    await bus.close()


async def settled(world):
    return await world.unacked() == 0


async def test_each_leaf_gets_one_score_in_its_trees_trace(world, eventually):
    async with world.verifier():
        for number in range(40):
            world.trees.completions[number.to_bytes(32, "big")] = "7" if number % 2 else "8"
            await world.leaf(number)
        await eventually(lambda: len(world.scores) == 40)
        await eventually(lambda: settled(world))
    for segment, found in world.scores.items():
        ((event, traceparent),) = found
        right = int.from_bytes(segment, "big") % 2
        assert event.scored.score.state == tree_pb2.SCORE_STATE_SCORED
        assert event.scored.score.value == float(right)
        assert (event.scored.scorer, event.scored.scorer_version, event.verifier_id) == ("number", "1", "v1")
        assert traceparent.split("-")[1] == "1" * 32


async def test_leaves_of_one_message_are_answered_for_together(world, eventually):
    for number in (1, 2, 3):
        world.trees.completions[number.to_bytes(32, "big")] = "7"
    async with world.verifier():
        missing = (4).to_bytes(32, "big")
        await world.leaves(1, 2, 3, 4)
        await eventually(lambda: len(world.scores) == 3)
        assert await world.unacked() > 0  # the fourth is owed still
        world.trees.completions[missing] = "7"
        await eventually(lambda: missing in world.scores)
        await eventually(lambda: settled(world))


async def test_a_poisonous_leaf_takes_none_of_its_message_along(world, eventually):
    world.trees.completions[(1).to_bytes(32, "big")] = "7"
    world.trees.poison = (2).to_bytes(32, "big")
    async with world.verifier():
        await world.leaves(1, 2)
        await eventually(lambda: len(world.scores) == 1)
        await eventually(lambda: settled(world))
    info = await world.bus._js.stream_info(subjects.DEAD)
    assert info.state.messages == 1


async def test_a_leaf_delivered_twice_is_one_score_on_the_log(world, eventually):
    segment = (1).to_bytes(32, "big")
    world.trees.completions[segment] = "7"
    async with world.verifier():
        await world.leaf(1, epoch=1)
        await eventually(lambda: segment in world.scores)
        await world.leaf(1, epoch=2)
        await eventually(lambda: world.trees.reads >= 2)
        await eventually(lambda: settled(world))
    assert len(world.scores[segment]) == 1


async def test_a_leaf_that_the_store_has_not_yet_waits(world, eventually):
    async with world.verifier():
        segment = await world.leaf(1)
        await eventually(lambda: world.trees.reads >= 2)
        assert not world.scores
        world.trees.completions[segment] = "7"
        await eventually(lambda: segment in world.scores)


async def test_a_leaf_of_an_old_claim_or_an_ended_tree_is_let_go(world, eventually):
    async with world.verifier():
        world.trees.epoch = 2
        await world.leaf(1, epoch=1)
        await eventually(lambda: world.trees.reads >= 1)
        await eventually(lambda: settled(world))
        world.trees.epoch, world.trees.state = 1, tree_pb2.TREE_STATE_DROPPED
        await world.leaf(2, epoch=1)
        await eventually(lambda: world.trees.reads >= 2)
        await eventually(lambda: settled(world))
    assert not world.scores


async def test_a_store_that_is_down_for_a_while_loses_nothing(world, eventually):
    world.trees.down = True
    async with world.verifier():
        segment = await world.leaf(1)
        world.trees.completions[segment] = "7"
        await eventually(lambda: world.trees.reads >= 2)
        assert not world.scores
        world.trees.down = False
        await eventually(lambda: segment in world.scores)


async def test_malformed_and_poisonous_leaves_are_buried_and_others_scored(world, eventually):
    dead = []

    async def mourn():
        async for delivery in world.bus.listen(subjects.DEAD, ["dead.>"]):
            dead.append(delivery.decode(events_pb2.DeadLetter))

    mourning = asyncio.create_task(mourn())
    async with world.verifier():
        await world.bus.publish_bytes(subjects.lineage(RUN, "leaf"), b"\xff\xff\xff", "bad-1")
        leaf = events_pb2.LeafFinished(run_id=RUN, tree_id=bytes(32), leaf={"segment": bytes(32), "end": 1}, claim_epoch=1)
        many = events_pb2.LeavesFinished(leaves=[leaf] * (subjects.MOST_LEAVES + 1))
        await world.bus.publish(subjects.lineage(RUN, "leaf"), many, "bad-2")
        await world.leaf(5, end=666)
        segment = (6).to_bytes(32, "big")
        world.trees.completions[segment] = "7"
        await world.leaf(6)
        await eventually(lambda: segment in world.scores)
        await eventually(lambda: len(dead) >= 2)
        await eventually(lambda: settled(world))
    mourning.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await mourning
    info = await world.bus._js.stream_info(subjects.DEAD)
    assert info.state.messages == 3
    letters = await (await world.bus.consumer(subjects.DEAD, "all", ["dead.>"])).fetch(3, 5.0)
    assert "65 leaves; at most 64" in " ".join(one.decode(events_pb2.DeadLetter).reason for one in letters)
    assert {letter.service for letter in dead} == {"verifier"}


async def test_an_unusable_recipe_or_an_unknown_scorer_is_said_not_waited_for(world, eventually):
    world.trees.scorers = ["number", "no-such"]
    async with world.verifier():
        segment = (1).to_bytes(32, "big")
        world.trees.completions[segment] = "7"
        await world.leaf(1)
        await eventually(lambda: len(world.scores.get(segment, [])) == 2)
    reasons = {e.scored.scorer: e.scored.score.reason for e, _ in world.scores[segment]}
    assert reasons["number"] == ""
    assert "no-such" in reasons["no-such"]
    world.runs.recipe = "{}"
    async with world.verifier():
        segment = (2).to_bytes(32, "big")
        world.trees.completions[segment] = "7"
        await world.leaf(2)
        await eventually(lambda: len(world.scores.get(segment, [])) == 2)
    assert all("recipe" in e.scored.score.reason for e, _ in world.scores[segment])


async def test_a_verifier_stopped_in_the_middle_leaves_the_rest_to_the_next(world, eventually, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    segments = [n.to_bytes(32, "big") for n in range(30)]
    for number, segment in enumerate(segments):
        world.trees.completions[segment] = "7"
        await world.leaf(number)
    async with world.verifier():
        await eventually(lambda: len(world.scores) >= 1)
    async with world.verifier():
        await eventually(lambda: len(world.scores) == 30)
    assert all(len(found) == 1 for found in world.scores.values())
