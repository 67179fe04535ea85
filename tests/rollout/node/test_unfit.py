"""A node whose engine does not compute with its policy is out of service, and finally ends."""

import pytest
import pytest_asyncio

from banyan.errors import TemporaryError
from services.rollout.engines.port import UNPROVEN
from services.rollout.weights import refresh
from tests.rollout.node.test_node import SLOW
from tests.rollout.world import ids, world


def refuse(policy, weights):
    raise TemporaryError(f"policy step {policy.step} is not what is computed with", reason=UNPROVEN)


@pytest_asyncio.fixture
async def small(nats_server, tmp_path):
    async with world(nats_server.url, tmp_path / "state") as w:
        yield w


async def distrusted(node, w):
    """Let the engine refuse the next policy, while a tree grows by the present one."""
    (opened,) = await w.open(1, {"width": 4}, max_new_tokens=60)
    node._thread._command(lambda engine: setattr(engine, "load", refuse))
    return opened


async def test_its_trees_go_to_another_and_it_takes_none_until_an_update_is_proven(
    small, eventually
):
    await small.begin(**SLOW)
    await small.policy(0)
    async with small.node("unfit") as unfit:
        await eventually(lambda: unfit.refresher.loaded is not None)
        opened = await distrusted(unfit, small)
        await eventually(lambda: len(unfit.trees.growing) == 1)
        await small.policy(1)
        await eventually(
            lambda: not unfit.refresher.fit and not len(unfit.trees),
            10,
            "the tree to be handed back",
        )
        async with small.node("fit"):
            (tree,) = await small.grown([opened])
            assert (
                "fit" in {s.producer for s in tree.segments}
                and tree.claim_epoch == 2
                and len(tree.leaves) == 4
            )
            await small.grown(await small.open(2, first=1))
            assert unfit.trees.grown == 0
        unfit._thread._command(lambda engine: delattr(engine, "load"))
        await eventually(
            lambda: unfit.refresher.fit and unfit.refresher.loaded.step == 1, 10, "a proof"
        )
        (regrown,) = await small.grown(await small.open(3, first=2))
        assert {s.producer for s in regrown.segments} == {"unfit"} and ids(regrown)


async def test_it_ends_where_no_update_can_be_proven(small, eventually, monkeypatch):
    monkeypatch.setattr(refresh, "UNFIT_S", 0.5)
    await small.begin(**SLOW)
    await small.policy(0)
    with pytest.raises(TemporaryError, match="policy step 1 is not what is computed with"):
        async with small.node("unfit") as unfit:
            await eventually(lambda: unfit.refresher.loaded is not None)
            opened = await distrusted(unfit, small)
            await eventually(lambda: len(unfit.trees.growing) == 1)
            await small.policy(1)
            await eventually(lambda: unfit.task.done(), 10, "the node's end")
    async with small.node("fit"):
        await small.grown([opened])
