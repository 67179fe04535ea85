"""Leaves from a real nats-server, transcripts from a real gRPC server, scores back on the log."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from banyan.errors import DeadlineMissed
from banyan.v1 import (
    events_pb2,
    runstore_service_pb2_grpc,
    tree_pb2,
    treestore_service_pb2_grpc,
)
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.rpc import rpc
from services.verifier import worker_loop
from services.verifier.publisher import BusPublisher
from tests.verifier.fake_stores import RUN, RunStore, TreeStore, World


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
        assert (event.scored.scorer, event.scored.scorer_version, event.verifier_id) == (
            "number",
            "2",
            "v1",
        )
        assert traceparent.split("-")[1] == "1" * 32


async def test_leaves_of_one_message_are_answered_for_together(world, eventually):
    for number in (1, 2, 3):
        world.trees.completions[number.to_bytes(32, "big")] = "7"
    async with world.verifier():
        missing = (4).to_bytes(32, "big")
        await world.leaves(1, 2, 3, 4)
        await eventually(lambda: len(world.scores) == 3)
        assert world.runs.reads == 1
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


async def test_a_score_that_is_owed_still_when_its_leaf_comes_again_is_one_message(
    world, eventually
):
    """The store has not ingested the score, so the leaf is scored again under the same id."""
    world.trees.completions[(1).to_bytes(32, "big")] = "7"
    world.trees.ingests = False
    async with world.verifier():
        for epoch in (1, 2):
            await world.leaf(1, epoch=epoch)
            await eventually(lambda epoch=epoch: world.trees.reads >= epoch)
            await eventually(lambda: settled(world))
    info = await world.bus._js.stream_info(
        subjects.LINEAGE, subjects_filter=subjects.lineage(RUN, "score")
    )
    assert info.state.subjects == {subjects.lineage(RUN, "score"): 1}


class FailsAtFirst:
    """A publisher that fails at the first score of one leaf."""

    def __init__(self, bus, segment):
        self._publisher, self._segment, self.failed = BusPublisher(bus), segment, 0

    async def publish(self, scored, msg_id, traceparent):
        if scored.scored.leaf.segment == self._segment and not self.failed:
            self.failed += 1
            raise DeadlineMissed("no ack from NATS")
        await self._publisher.publish(scored, msg_id, traceparent)


async def test_a_message_is_acked_only_when_each_of_its_scores_is_with_the_broker(
    world, eventually
):
    one, other = ((number).to_bytes(32, "big") for number in (1, 2))
    world.trees.completions = {one: "7", other: "8"}
    publisher = FailsAtFirst(world.bus, other)
    async with world.verifier(publisher):
        await world.leaves(1, 2)
        await eventually(
            lambda: {one, other} <= world.scores.keys(), what="the score that failed for now"
        )
        await eventually(lambda: settled(world))
    assert publisher.failed == 1 and len(world.scores[one]) == len(world.scores[other]) == 1


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
        leaf = events_pb2.LeafFinished(
            run_id=RUN, tree_id=bytes(32), leaf={"segment": bytes(32), "end": 1}, claim_epoch=1
        )
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
    assert "65 leaves; at most 64" in " ".join(
        one.decode(events_pb2.DeadLetter).reason for one in letters
    )
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


async def test_a_verifier_stopped_in_the_middle_leaves_the_rest_to_the_next(
    world, eventually, monkeypatch
):
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


async def test_what_a_killed_verifier_had_taken_comes_again_within_seconds(world, eventually):
    await world.bus.consumer(
        subjects.LINEAGE, "verifier", [subjects.lineage("*", "leaf")]
    )  # as it was made before

    async def waits():
        return (await world.bus._js.consumer_info(subjects.LINEAGE, "verifier")).config.ack_wait

    assert await waits() == 30.0
    async with world.verifier():
        await eventually(lambda: settled_at(waits, worker_loop.ACK_WAIT_S))
    assert (
        3 * worker_loop.PROGRESS_S < worker_loop.ACK_WAIT_S <= 5.0
    )  # and what takes longer does not come twice


async def settled_at(read, wanted):
    return await read() == wanted
