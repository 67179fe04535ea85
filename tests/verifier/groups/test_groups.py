"""Whole groups: ends of growth from a real broker, leaves from a real treestore, votes logged."""

import asyncio
import json

from banyan.errors import DeadlineMissed
from banyan.v1 import events_pb2, tree_pb2
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import treestore_service_pb2 as ts
from services.chassis.messaging import subjects
from services.chassis.rpc import rpc
from services.verifier import worker_loop
from services.verifier.groups import DURABLE, GroupHandler, GrowthEnd
from services.verifier.publisher import BusPublisher
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.scoring import Scoring
from tests.treestore.client import Store
from tests.verifier.groups.world import RECIPE, VOTE, grow, store_of, verifier


class Broken(BusPublisher):
    """A publisher that hangs after so many scores: a verifier that is killed in between."""

    def __init__(self, bus, most):
        super().__init__(bus)
        self.left = most

    async def publish(self, scored, msg_id, traceparent):
        if self.left <= 0:
            await asyncio.Event().wait()
        self.left -= 1
        await super().publish(scored, msg_id, traceparent)


class Counting(BusPublisher):
    """A publisher that counts its scores."""

    published = 0

    async def publish(self, scored, msg_id, traceparent):
        self.published += 1
        await super().publish(scored, msg_id, traceparent)


class Failing(BusPublisher):
    """A publisher that misses the deadline of the second score, and works otherwise."""

    asked = 0

    async def publish(self, scored, msg_id, traceparent):
        self.asked += 1
        if self.asked == 2:
            raise DeadlineMissed("NATS did not take a score within 30 s")
        await super().publish(scored, msg_id, traceparent)


async def scores(store: Store, tree_id: bytes) -> list[tuple[str, float, float]]:
    tree = (await rpc.call(store.trees.GetTree, ts.GetTreeRequest(tree_id=tree_id))).tree
    return [(s.scorer, s.score.value, s.score.parts["majority_ratio"]) for s in tree.scores]


async def unacked(store: Store) -> int:
    info = await store.bus._js.consumer_info(subjects.LINEAGE, DURABLE)
    return info.num_pending + info.num_ack_pending


async def ack_wait(store: Store) -> float:
    return (await store.bus._js.consumer_info(subjects.LINEAGE, DURABLE)).config.ack_wait


async def waits(store: Store, wanted_s: float) -> bool:
    return await ack_wait(store) == wanted_s


async def redelivered(store: Store) -> int:
    return (await store.bus._js.consumer_info(subjects.LINEAGE, DURABLE)).num_redelivered


async def comes_again(store: Store) -> bool:
    """Return True if one message, and no other, was redelivered and is not acknowledged."""
    info = await store.bus._js.consumer_info(subjects.LINEAGE, DURABLE)
    return (info.num_redelivered, info.num_pending, info.num_ack_pending) == (1, 0, 1)


async def test_a_group_is_voted_on_once_all_its_trees_are_grown(store, eventually):
    a, b = (store.forge.spec(0, index, 2, **VOTE) for index in (0, 1))
    async with verifier(store):
        await grow(store, a, ["7", "it is 8", "no idea"])
        await eventually(lambda: none_left(store))
        assert await scores(store, a.tree_id) == []  # the other tree still grows
        await grow(store, b, ["8", "8.0", "7"])
        await eventually(lambda: counted(store, a, b, 6))
        assert await scores(store, a.tree_id) == [
            ("majority", v, 0.5) for v in (0.0, 1.0, 0.0)
        ]  # 8: 3 of 6
        assert await scores(store, b.tree_id) == [("majority", v, 0.5) for v in (1.0, 1.0, 0.0)]
        await eventually(lambda: none_left(store))
        tree = (await rpc.call(store.trees.GetTree, ts.GetTreeRequest(tree_id=b.tree_id))).tree
        assert tree.state == tree_pb2.TREE_STATE_CLOSED


async def grow_silently(
    store: Store, spec: tree_pb2.TreeSpec, texts: list[str]
) -> events_pb2.TreeGrown:
    """Publish all of a tree except its end, which is returned."""
    await store.publish(store.forge.opened(spec, store.epoch))
    epoch, root = await store.claim(spec.tree_id), store.forge.root(spec)
    leaves = [store.forge.child(root, n, text=text) for n, text in enumerate(texts)]
    await store.publish(store.forge.segments(root, *leaves, epoch=epoch))
    await store.publish(*(store.forge.leaf(leaf, epoch=epoch) for leaf in leaves))
    return events_pb2.TreesGrown.FromString(
        store.forge.grown(spec.tree_id, *leaves, epoch=epoch).data
    ).trees[0]


async def test_an_end_that_is_not_there_yet_holds_up_no_other_of_its_message(store, eventually):
    spec = store.forge.spec(4, 0, 1, **VOTE)
    unknown = events_pb2.TreeGrown(
        run_id=store.forge.run_id, tree_id=b"?" * 32, claim_epoch=1, node_id="node-1"
    )
    ends = events_pb2.TreesGrown(trees=[unknown, await grow_silently(store, spec, ["3", "4"])])
    async with verifier(store):
        await store.publish(store.forge.item("grown", ends))
        await eventually(lambda: counted(store, spec, None, 2))
        await eventually(lambda: comes_again(store))  # for the other


async def test_trees_of_another_run_are_not_voted_on(store, eventually):
    spec, counting = store.forge.spec(5, 0, 1, **VOTE), Counting(store.bus)
    grown = await grow_silently(store, spec, ["3", "4"])
    await store.publish(store.forge.item("grown", events_pb2.TreesGrown(trees=[grown])))
    other = store.forge.run()
    other.run_id, other.recipe_json = "other-00000001", json.dumps(RECIPE)
    await rpc.call(
        store.runs.PutRun,
        rs.PutRunRequest(run=other, request_id="other", gateway_epoch=store.epoch),
    )
    scoring = Scoring(Pool(Limits(deadline_s=2.0)))
    handler, ends = (
        GroupHandler(store_of(store), counting, scoring, "v1"),
        [GrowthEnd(spec.tree_id, grown.claim_epoch)],
    )
    assert await handler.handle(other.run_id, ends) and counting.published == 0
    assert await handler.handle(store.forge.run_id, ends) and counting.published == 2
    await scoring.close()


async def test_a_message_of_too_many_ends_is_a_dead_letter(store, eventually):
    one = events_pb2.TreeGrown(
        run_id=store.forge.run_id, tree_id=b"?" * 32, claim_epoch=1, node_id="node-1"
    )
    async with verifier(store):
        await store.bus.publish(
            subjects.lineage(store.forge.run_id, "grown"),
            events_pb2.TreesGrown(trees=[one] * 65),
            "many",
        )
        await eventually(lambda: dead(store))
        await eventually(lambda: none_left(store))


async def test_trees_that_end_in_one_message_are_voted_on_once(store, eventually):
    a, b = (store.forge.spec(3, index, 2, **VOTE) for index in (0, 1))
    ends = events_pb2.TreesGrown(
        trees=[await grow_silently(store, a, ["3", "4"]), await grow_silently(store, b, ["3", "5"])]
    )
    counting = Counting(store.bus)
    async with verifier(store, counting):
        await store.publish(store.forge.item("grown", ends))
        await eventually(lambda: counted(store, a, b, 4))
        await eventually(lambda: none_left(store))
    assert counting.published == 4
    assert await scores(store, a.tree_id) == [("majority", v, 0.5) for v in (1.0, 0.0)]


async def test_a_verifier_that_was_killed_in_between_leaves_nothing_undone_or_done_twice(
    store, eventually
):
    spec = store.forge.spec(1, 0, 1, **VOTE)
    async with verifier(store, Broken(store.bus, 2)):
        await grow(store, spec, ["3", "4", "3", "5"])
        await eventually(lambda: counted(store, spec, None, 2))
    async with verifier(store):
        # What the first one held comes again at its ack wait; the store's reminder does not have
        # to be waited for here.
        again = events_pb2.TreeGrown(
            run_id=store.forge.run_id, tree_id=spec.tree_id, claim_epoch=1, node_id="node-1"
        )
        tree = (await rpc.call(store.trees.GetTree, ts.GetTreeRequest(tree_id=spec.tree_id))).tree
        again.leaves.extend(tree.leaves)
        await store.publish(
            store.forge.item("grown", events_pb2.TreesGrown(trees=[again])), prefix="again"
        )
        await eventually(lambda: counted(store, spec, None, 4))
    assert await scores(store, spec.tree_id) == [("majority", v, 0.5) for v in (1.0, 0.0, 1.0, 0.0)]
    stats = await rpc.call(store.trees.GetStats, ts.GetStatsRequest(run_id=store.forge.run_id))
    assert stats.counts["scores"] == 4 and stats.counts["late"] == 0 and stats.counts["dead"] == 0


async def test_an_end_of_which_a_score_was_not_published_comes_again(store, eventually):
    """Acknowledged, it would be lost until the store's reminder, after half of the deadline."""
    spec, failing = store.forge.spec(6, 0, 1, score_deadline_ms=600_000, **VOTE), Failing(store.bus)
    async with verifier(store, failing):
        await grow(store, spec, ["3", "4", "3", "5"])
        await eventually(lambda: counted(store, spec, None, 4))
        await eventually(lambda: none_left(store))
    assert failing.asked > 4, "none failed"
    assert await scores(store, spec.tree_id) == [("majority", v, 0.5) for v in (1.0, 0.0, 1.0, 0.0)]
    stats = await rpc.call(store.trees.GetStats, ts.GetStatsRequest(run_id=store.forge.run_id))
    assert stats.counts["scores"] == 4 and stats.counts["dead"] == 0


async def test_what_a_killed_verifier_had_taken_comes_again_within_seconds(store, eventually):
    await store.bus.consumer(
        subjects.LINEAGE, DURABLE, [subjects.lineage("*", "grown")]
    )  # as it was made before
    assert await ack_wait(store) == 30.0
    async with verifier(store):
        await eventually(lambda: waits(store, worker_loop.ACK_WAIT_S))
    assert (
        3 * worker_loop.PROGRESS_S < worker_loop.ACK_WAIT_S <= 5.0
    )  # and what takes longer does not come twice


async def test_a_group_that_a_killed_verifier_had_taken_is_scored_by_the_next(
    store, eventually, monkeypatch
):
    monkeypatch.setattr(worker_loop, "ACK_WAIT_S", 3.0)
    monkeypatch.setattr(worker_loop, "PROGRESS_S", 0.3)  # a stall of a busy machine is shorter
    spec = store.forge.spec(
        7, 0, 1, score_deadline_ms=600_000, **VOTE
    )  # the store reminds of it after minutes
    async with verifier(store, Broken(store.bus, 2)):
        await grow(store, spec, ["3", "4", "3", "5"])
        await eventually(lambda: counted(store, spec, None, 2))
        await asyncio.sleep(
            1.5 * worker_loop.ACK_WAIT_S
        )  # it says that it is at it, so that nobody else is given it
        assert await redelivered(store) == 0
    async with verifier(store):
        await eventually(lambda: counted(store, spec, None, 4), 20.0)


async def test_a_tree_that_is_dropped_ends_the_wait_of_the_others(store, eventually):
    a, b = (store.forge.spec(2, index, 2, **VOTE) for index in (0, 1))
    async with verifier(store):
        await grow(store, a, ["7", "8", "8"])
        await store.publish(store.forge.opened(b, store.epoch))
        epoch = await store.claim(b.tree_id)
        give_up = ts.ReturnTreeRequest(tree_id=b.tree_id, epoch=epoch, reason="UNUSABLE: test")
        await rpc.call(store.trees.ReturnTree, give_up)
        await eventually(lambda: counted(store, a, None, 3))
    assert await scores(store, a.tree_id) == [("majority", v, 2 / 3) for v in (0.0, 1.0, 1.0)]


async def test_an_end_that_cannot_be_right_is_a_dead_letter(store, eventually):
    async with verifier(store):
        await store.bus.publish_bytes(
            subjects.lineage(store.forge.run_id, "grown"), b"\xff\xff", "broken"
        )
        await eventually(lambda: dead(store))
        await eventually(lambda: none_left(store))


async def none_left(store):
    return await unacked(store) == 0


async def dead(store):
    return (await store.bus._js.stream_info(subjects.DEAD)).state.messages > 0


async def counted(store, a, b, wanted):
    found = [await scores(store, spec.tree_id) for spec in (a, b) if spec is not None]
    return sum(map(len, found)) == wanted
