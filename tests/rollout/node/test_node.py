"""A node on a real treestore and nats-server: claims, resumption, losses, drain, service."""

import asyncio

import grpc.aio
import pytest
import pytest_asyncio

from banyan.v1 import events_pb2, rollout_service_pb2_grpc, tree_pb2
from banyan.v1 import rollout_service_pb2 as ro
from banyan.v1 import treestore_service_pb2 as ts
from services.chassis.messaging import subjects
from services.chassis.rpc import rpc
from services.rollout.clients.treestore import GrpcStore
from services.rollout.server import NAME, RolloutServer, adder
from tests.rollout.growing import TREEPO
from tests.rollout.world import RUN, World, ids, world

SLOW = {"engine_settings": {"chain": {"": {"a": 0.5, "b": 0.5}}, "latency_s": 0.03}}
# An engine that still works when its first segments are stored.
LONG = {"engine_settings": {**SLOW["engine_settings"], "latency_s": 0.2}}
TREE = {"segment": 3, "max_depth": 4, "width": 8}


@pytest_asyncio.fixture
async def small(nats_server, tmp_path):
    async with world(nats_server.url, tmp_path / "state") as w:
        yield w


async def queue_is_empty(w: World) -> bool:
    info = await w.bus._js.stream_info(subjects.GROWTH)
    return info.state.messages == 0


async def test_trees_are_grown_stored_and_acknowledged(small, eventually):
    await small.begin()
    await small.policy(0)
    async with small.node() as node:
        opened = await small.open(12)
        for tree in await small.grown(opened):
            assert len(ids(tree)) == 5 and len(tree.leaves) == 4
            assert {s.producer for s in tree.segments} == {"n1"} and tree.claim_epoch == 1
            assert {s.policy.digest for s in tree.segments if s.parent} == {bytes(32)}
        await eventually(lambda: queue_is_empty(small), 10, "the queue of assignments to empty")
        await eventually(lambda: len(node.trees) == 0 and node.trees.grown == 12)


async def test_the_completion_of_a_leaf_is_its_path_without_the_prompt(small):
    await small.begin()
    await small.policy(0)
    async with small.node():
        (opened,) = await small.open(1, TREE, TREEPO, max_new_tokens=12)
        (tree,) = await small.grown([opened])
        keys = [ts.LeafKey(tree_id=opened, leaf=leaf) for leaf in tree.leaves]
        answer = await rpc.call(
            small.trees.ReadLeaves, ts.ReadLeavesRequest(leaves=keys, deadline_ms=1000)
        )
        texts = {s.id: (s.text, s.parent) for s in tree.segments}
        assert len(answer.transcripts) == 8
        for transcript in answer.transcripts:
            at, text = transcript.key.leaf.segment, ""
            while texts[at][1]:
                text, at = texts[at][0] + text, texts[at][1]
            assert transcript.completion == text


async def test_another_node_goes_on_where_a_dead_one_stopped(small, eventually):
    """A node that is cut off returns nothing. The next claim resumes the tree and fences it."""
    await small.begin(**LONG)
    await small.policy(0)
    async with small.node("dead") as dead:
        (opened,) = await small.open(1, TREE, TREEPO, max_new_tokens=12)
        await eventually(lambda: some_segments(small, opened, 4), 10, "some segments")
        dead.task.cancel()
        await asyncio.wait([dead.task])
    before = ids(await small.state(opened))
    async with small.node("heir") as heir:
        # The broker redelivers the assignment only after ack_wait: claim it by hand.
        heir.trees.put(await heir._claimer.claim_one(FakeDelivery(RUN, opened)))
        (tree,) = await small.grown([opened])
        assert tree.claim_epoch == 2 and before <= ids(tree) and len(tree.leaves) == 8
        places = [(s.parent, s.fork, s.ordinal) for s in tree.segments]
        assert len(set(places)) == len(places)
        assert {s.producer for s in tree.segments} == {"dead", "heir"}
        untouched = {s.id for s in tree.segments if s.producer == "dead"}
        assert before == untouched


async def test_a_node_that_dies_has_its_trees_again_as_it_begins(small, eventually):
    """Not after the broker's wait for its assignments, which is longer than this test takes."""
    await small.begin(**LONG)
    await small.policy(0)
    async with small.node() as dead:
        (opened,) = await small.open(1, TREE, TREEPO, max_new_tokens=12)
        await eventually(lambda: some_segments(small, opened, 4), 10, "some segments")
        dead.task.cancel()
        await asyncio.wait([dead.task])
    before = ids(await small.state(opened))
    await GrpcStore(small.channel, RUN, "n1").begin()
    async with small.node() as restarted:
        (tree,) = await small.grown([opened], 10.0)
        assert tree.claim_epoch == 2 and before <= ids(tree) and len(tree.leaves) == 8
        await eventually(lambda: len(restarted.trees) == 0)


async def some_segments(w: World, tree: bytes, count: int) -> bool:
    stored = await w._or_none(tree)
    return stored is not None and len(stored.segments) >= count


class FakeDelivery:
    """An assignment that no broker knows."""

    traceparent = ""

    def __init__(self, run_id, tree):
        assignment = events_pb2.GrowTree(run_id=run_id, tree_id=tree, ticket=1)
        self.data, self.answers = assignment.SerializeToString(), []

    async def ack(self):
        self.answers.append("ack")

    async def nak(self, delay_s):
        self.answers.append("nak")

    async def in_progress(self):
        self.answers.append("in_progress")

    async def term(self):
        self.answers.append("term")


class Lossy:
    """A log that loses the first message of each kind after acknowledging it."""

    def __init__(self, inner):
        self.inner, self.lost = inner, set()

    async def publish(self, subject, message, msg_id, **more):
        kind = subject.rsplit(".", 1)[1]
        if kind not in self.lost:
            self.lost.add(kind)
            return 0
        return await self.inner.publish(subject, message, msg_id, **more)


async def test_what_the_store_lacks_is_published_again(small, monkeypatch):
    monkeypatch.setattr("services.rollout.node.completion._WAIT_S", 0.3)
    await small.begin()
    await small.policy(0)
    async with small.node(bus=Lossy):
        opened = await small.open(3)
        trees = await small.grown(opened, 10.0)
    assert all(len(ids(tree)) == 5 and len(tree.leaves) == 4 for tree in trees)


async def test_a_stale_claim_is_dropped_here(small, eventually):
    await small.begin(**SLOW)
    await small.policy(0)
    async with small.node() as node:
        (opened,) = await small.open(1, {"width": 4}, max_new_tokens=500)
        await eventually(lambda: len(node.trees.growing) == 1)
        await rpc.call(
            small.trees.ClaimTree, ts.ClaimTreeRequest(tree_id=opened, node_id="thief", ticket=1)
        )
        await node._renewer.renew_progressing()
        assert len(node.trees) == 0
        await eventually(lambda: idle(node), 5, "the engine to be idle")


async def test_a_tree_that_its_group_can_do_without_is_stopped_at_once(small, eventually):
    await small.begin(**SLOW)
    await small.policy(0)
    async with small.node() as node:
        (stale,) = await small.open(1, {"width": 4}, max_new_tokens=2000, last_step=0)
        (kept,) = await small.open(2, {"width": 4}, max_new_tokens=2000, first=1)
        await eventually(lambda: len(node.trees.growing) == 2)
        await small.policy(1)  # a batch may not take group 0 any more
        await eventually(
            lambda: [live.spec.tree_id for live in node.trees] == [kept],
            5,
            "long before the next renewal",
        )
        dropped = await small.state(stale)
        assert (dropped.state, dropped.reason) == (tree_pb2.TREE_STATE_DROPPED, "STALE")
        await eventually(lambda: only(node, 4), 5, "the engine to have its branches stopped")


async def only(node, branches):
    stats = await node._thread.stats()
    return stats.running + stats.waiting == branches


async def idle(node):
    stats = await node._thread.stats()
    return stats.running == stats.waiting == 0


async def test_a_drain_hands_trees_back_with_all_that_was_sampled(small, eventually):
    await small.begin(**SLOW)
    await small.policy(0)
    async with small.node("leaving") as node:
        (opened,) = await small.open(1, {"width": 4}, max_new_tokens=40)
        await eventually(lambda: sampled(node, 20), 10)
    tree = await small.state(opened)
    parts = [s for s in tree.segments if s.parent]
    assert [s.finish for s in parts] == [tree_pb2.SEGMENT_FINISH_ABORTED] * 4
    assert sum(len(s.tokens) // 4 for s in parts) >= 20
    async with small.node("next"):
        (done,) = await small.grown([opened])
        assert {s.id for s in parts} <= ids(done) and len(done.leaves) == 4
        assert {s.producer for s in done.segments} == {"leaving", "next"}
        assert done.claim_epoch == 2


async def sampled(node, tokens):
    return (await node._thread.stats()).sampled_tokens >= tokens


async def test_the_service_expands_checks_and_drains(small):
    await small.begin(engine_settings={"chain": {"": {"a": 0.5, "b": 0.5}}})
    await small.policy(3)
    async with small.node() as node:
        (opened,) = await small.open(1)
        await small.grown([opened])
        server = await rpc.serve("127.0.0.1:0", [adder(RolloutServer(node, node._thread))], [NAME])
        channel = rpc.channel(server.address)
        stub = rollout_service_pb2_grpc.RolloutServiceStub(channel)
        prefix = node._thread.tokenizer.encode_chat([{"role": "user", "content": "x"}]).tolist()
        sampling = tree_pb2.SamplingParams(temperature=1.0, top_p=1.0, max_new_tokens=5, seed=9)
        request = ro.RolloutServiceExpandRequest(tokens=prefix, branches=3, sampling=sampling)
        parts = [p async for p in stub.Expand(request)]
        assert sorted(p.branch for p in parts) == [0, 1, 2] and all(len(p.text) == 5 for p in parts)
        check = ro.LogProbsRequest(
            tokens=prefix + list(parts[0].tokens), first=len(prefix), temperature=1.0
        )
        answer = await rpc.call(stub.LogProbs, check)
        assert (
            list(answer.logprobs) == pytest.approx(list(parts[0].logprobs), abs=1e-6)
            and answer.policy.step == 3
        )
        status = await rpc.call(stub.GetStatus, ro.RolloutServiceGetStatusRequest())
        assert (status.node_id, status.run_id, status.policy.step) == (
            "n1",
            RUN,
            3,
        ) and status.sampled_tokens >= 15
        with pytest.raises(grpc.aio.AioRpcError, match=r"1\.\.256 branches"):
            _ = [p async for p in stub.Expand(ro.RolloutServiceExpandRequest(tokens=prefix))]
        await rpc.call(stub.Drain, ro.DrainRequest(deadline_ms=3000))
        await asyncio.wait_for(node.task, 10)
        await channel.close(None)
        await server.stop(0)
