"""A curriculum that decides by facts, on the real treestore and broker."""

import pytest

from banyan.errors import Refused
from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1 import treestore_service_pb2 as lineage
from banyan.wire import plain_data
from services.chassis.rpc import rpc
from services.gateway import service
from services.gateway.clients.treestore import RpcStore
from tests.gateway.live_site import channel, site


async def test_a_decision_is_stored_before_its_trees_and_explains_itself(
    tmp_path, recipe_of, eventually
) -> None:
    recipe = recipe_of(
        control={"curriculum": "tests.gateway.curriculum_doubles:Again"}, task={"holdout": 0.0}
    )
    async with site(tmp_path) as here:
        run = await here.create(recipe)
        await here.publish_policy(run.run_id, 0)

        async def opened() -> bool:
            return (await here.progress(run.run_id)).groups.opened == 4

        await eventually(opened, 20)
        request = runs.ReadAllocationsRequest(run_id=run.run_id)
        stored = (await rpc.call(here.runs.ReadAllocations, request)).allocations
        assert [(a.ordinal, a.row, a.why) for a in stored] == [
            (i, i, "after 0 batches") for i in range(4)
        ]
        shown = plain_data.allocation(stored[0])
        assert (
            shown["settings"] == {"width": 4}
            and shown["trees"] is None
            and shown["why"] == "after 0 batches"
        )
        every = lineage.ListTreesRequest(filter=lineage.TreeFilter(run_id=run.run_id))
        before = {t.tree_id for t in (await rpc.call(here.trees.ListTrees, every)).trees}
        # Another gateway with a newer epoch.
        async with channel(here.settings.store) as plain, service.serving(here.settings):
            old = RpcStore(plain)
            old.epoch = 1
            with pytest.raises(Refused) as refused:
                await old.put_allocations(run.run_id, [runs.GroupAllocation(ordinal=9, row=1)])
            assert refused.value.reason == "STALE_EPOCH"
            newer = RpcStore(plain)
            newer.epoch = 2
            (stored_first,) = await newer.put_allocations(
                run.run_id, [runs.GroupAllocation(ordinal=2, row=77)]
            )
            assert stored_first.row == 2, "the first one stays valid, and a newer gateway reads it"
            outcomes = await newer.read_outcomes(run.run_id, 0, 5)
            assert (len(outcomes.groups), outcomes.next_batch) == (0, 0)
        assert {t.tree_id for t in (await rpc.call(here.trees.ListTrees, every)).trees} == before
