"""Trees that wait for policies, that no node can grow, and that start in waves."""

from banyan.v1 import tree_pb2
from tests.conftest import NatsServer, wait_until
from tests.rollout.growing import TREEPO
from tests.rollout.node.test_node import SLOW, TREE, sampled, small  # noqa: F401
from tests.rollout.world import ids, world

PLAN, FAILING = "tests.rollout.growing:Failing", {"after": 2}


async def test_a_tree_waits_for_its_policy_and_is_returned_late(small, eventually):  # noqa: F811
    await small.begin()
    await small.policy(0)
    async with small.node(policy_wait_s=0.5) as node:
        (opened,) = await small.open(1, min_step=1)
        await eventually(lambda: len(node.trees.pending) == 1)
        await eventually(lambda: claims(small, opened, 2), 15, "a return and another claim")
        await small.policy(1)
        (tree,) = await small.grown([opened])
        assert {s.policy.step for s in tree.segments if s.parent} == {1}
        assert node.refresher.loaded.step == 1


async def claims(w, tree, count):
    stored = await w._or_none(tree)
    return stored is not None and stored.claim_epoch >= count


async def test_a_new_policy_cuts_branches_unless_a_tree_forbids_it(small, eventually):  # noqa: F811
    await small.begin(**SLOW)
    await small.policy(0)
    async with small.node() as node:
        (free,) = await small.open(1, {"width": 3}, max_new_tokens=30)
        await eventually(lambda: sampled(node, 9), 10)
        await small.policy(1)
        (tree,) = await small.grown([free])
        assert {s.policy.step for s in tree.segments if s.parent} == {0, 1}
        assert len(tree.leaves) == 3
        only = {"min_step": 1, "max_step": 1}
        exact = await small.open(2, {"width": 3}, max_new_tokens=30, first=1, **only)
        await eventually(lambda: len(node.trees.growing) == 1)
        await small.policy(2)
        (tree,) = await small.grown(exact)
        assert {s.policy.step for s in tree.segments if s.parent} == {1}
        await eventually(lambda: node.refresher.loaded.step == 2)


async def test_a_tree_that_no_node_can_grow_is_dropped_at_once(small, eventually):  # noqa: F811
    await small.begin()
    await small.policy(0)
    async with small.node() as node:
        (bad_spec,) = await small.open(1, {"width": 4, "colour": "red"})
        (bad_plan,) = await small.open(2, FAILING, PLAN, first=1)

        async def dropped(tree, reason):
            stored = await small._or_none(tree)
            if stored is None or stored.state != tree_pb2.TREE_STATE_DROPPED:
                return False
            return reason in stored.reason and stored.claim_epoch == 1

        await eventually(lambda: dropped(bad_spec, "UNUSABLE: tree"))
        failure = f"UNUSABLE: generate.policy {PLAN}: ZeroDivisionError"
        await eventually(lambda: dropped(bad_plan, failure))
        await eventually(lambda: len(node.trees) == 0)
        (good,) = await small.open(3, first=2)
        await small.grown([good])


async def test_a_policy_whose_error_no_message_can_carry_ends_its_tree(
    small,  # noqa: F811
    eventually,
):
    await small.begin()
    await small.policy(0)
    async with small.node() as node:
        (bad,) = await small.open(1, {"after": 2, "message": "half \ud800" * 2000}, PLAN)

        async def dropped():
            stored = await small._or_none(bad)
            return stored is not None and stored.state == tree_pb2.TREE_STATE_DROPPED

        await eventually(dropped)
        stored = await small.state(bad)
        assert "ZeroDivisionError: half \ufffdhalf" in stored.reason and len(stored.reason) < 5000
        await eventually(lambda: len(node.trees) == 0)


async def test_a_tree_that_only_this_node_cannot_grow_is_queued(small, eventually):  # noqa: F811
    await small.begin()
    await small.policy(0)
    async with small.node() as node:
        (opened,) = await small.open(1, {}, "nowhere.at_all:policy")
        await eventually(lambda: claims(small, opened, 3), 20)
        assert len(node.trees) == 0
        assert (await small.state(opened)).state == tree_pb2.TREE_STATE_GROWING
        (good,) = await small.open(2, first=1)
        await small.grown([good])


async def test_a_wave_starts_whole_and_in_order_and_repeats_to_the_bit(tmp_path):
    runs = []
    for attempt, last in enumerate((5, 0)):  # another tree comes last; the segments are the same
        server = NatsServer(tmp_path / f"nats{attempt}")
        try:
            async with world(server.url, tmp_path / f"state{attempt}") as w:
                runs.append(await wave(w, last))
        finally:
            server.stop()
    assert runs[0] == runs[1]


async def wave(w, last):
    await w.begin(deterministic=True)
    await w.policy(0)
    more = {"max_new_tokens": 12, "wave": "w", "wave_size": 6}
    async with w.node() as node:
        opened = []
        for ordinal in (o for o in range(6) if o != last):
            opened += await w.open(ordinal + 1, TREE, TREEPO, first=ordinal, **more)
        await wait_until(lambda: len(node.trees.pending) == 5)
        assert not node.trees.growing, "five of six are not a wave"
        opened += await w.open(last + 1, TREE, TREEPO, first=last, **more)
        grown = {tree.spec.group_ordinal: ids(tree) for tree in await w.grown(opened)}
        steps = (await node._thread.stats()).steps
    return grown, steps
