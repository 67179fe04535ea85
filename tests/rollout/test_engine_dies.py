"""An engine that dies in a living process: its node ends, and another continues its trees."""

import pytest
import pytest_asyncio

from services.rollout.clients import publisher
from tests.rollout.growing import TREEPO
from tests.rollout.node.test_node import LONG, TREE, FakeDelivery
from tests.rollout.world import RUN, World, ids, world

TREES = 3


def fail(*_):
    raise RuntimeError("the accelerator is gone")


@pytest_asyncio.fixture
async def small(nats_server, tmp_path):
    async with world(nats_server.url, tmp_path / "state") as w:
        yield w


async def segments(w: World, trees: list[bytes]) -> int:
    states = [await w._or_none(tree) for tree in trees]
    return sum(len(tree.segments) for tree in states if tree is not None)


async def grow_until_it_dies(w: World, eventually) -> list[bytes]:
    """Run a node whose engine fails amid a step, in its own thread; return the trees."""
    with pytest.raises(RuntimeError, match="the accelerator is gone"):
        async with w.node("dying") as dying:
            opened = await w.open(TREES, TREE, TREEPO, max_new_tokens=12)
            await eventually(lambda: have_segments(w, opened), 15, "some segments")
            dying._thread._command(lambda engine: setattr(engine, "step", fail))
            await eventually(lambda: over(dying), 10, "the node's end")
    return opened


async def have_segments(w: World, opened: list[bytes]) -> bool:
    return await segments(w, opened) >= 3 * TREES


async def over(node) -> bool:
    return node.task.done()


async def test_its_trees_are_finished_by_another_node_from_where_it_stopped(small, eventually):
    await small.begin(**LONG)
    await small.policy(0)
    opened = await grow_until_it_dies(small, eventually)
    before = [ids(await small.state(tree)) for tree in opened]
    assert all(before)
    async with small.node("heir") as heir:
        # The broker redelivers the assignments only after ack_wait: claim them by hand.
        for tree_id in opened:
            heir.trees.put(await heir._claimer.claim_one(FakeDelivery(RUN, tree_id)))
        for kept, tree in zip(before, await small.grown(opened), strict=True):
            assert kept <= ids(tree) and len(tree.leaves) == 8 and tree.claim_epoch == 2
            assert {s.producer for s in tree.segments} == {"dying", "heir"}
            places = [(s.parent, s.fork, s.ordinal) for s in tree.segments]
            assert len(set(places)) == len(places)


async def test_ended_segments_are_published_before_it_goes(small, eventually, monkeypatch):
    """Resting segments are not lost at the end of the node."""
    monkeypatch.setattr(publisher, "_REST_S", 600.0)
    await small.begin(**LONG)
    await small.policy(0)
    with pytest.raises(RuntimeError, match="the accelerator is gone"):
        async with small.node("dying") as dying:
            opened = await small.open(TREES, TREE, TREEPO, max_new_tokens=12)
            await eventually(lambda: ended(dying, 3 * TREES), 15, "some segments")
            assert not await segments(small, opened)
            dying._thread._command(lambda engine: setattr(engine, "step", fail))
            await eventually(lambda: over(dying), 10, "the node's end")
            grown = {segment.id for tree in dying.trees for segment in tree.segments}
    await eventually(lambda: stored(small, opened, grown), 10, "what had ended")


async def test_resting_events_are_published_before_a_tree_is_returned(
    small, eventually, monkeypatch
):
    monkeypatch.setattr(publisher, "_REST_S", 600.0)
    await small.begin(**LONG)
    await small.policy(0)
    async with small.node("tired") as tired:
        (opened,) = await small.open(1, TREE, TREEPO, max_new_tokens=12)
        await eventually(lambda: ended(tired, 3), 15, "some segments")
        assert not await segments(small, [opened])
        (tree,) = tired.trees
        grown = {segment.id for segment in tree.segments}
        await tired._claimer.close()  # it does not claim its own tree again
        tired.executor.give_up(tree, "UNABLE: no memory")
        await eventually(lambda: not tired.trees.holds(tree), 10, "the end of its claim")
        await eventually(lambda: stored(small, [opened], grown), 10, "what had ended")


async def ended(node, count) -> bool:
    return sum(len(tree.segments) for tree in node.trees) >= count


async def stored(w: World, opened: list[bytes], wanted: set[bytes]) -> bool:
    return wanted <= {key for tree in opened for key in ids(await w.state(tree))}
