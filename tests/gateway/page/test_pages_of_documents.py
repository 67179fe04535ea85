"""Documents that come in parts, or with a note: long metrics, open and large groups."""

import asyncio
import json
from typing import Any

import pytest

from banyan.v1 import runstore_service_pb2 as rs
from services.chassis.rpc import rpc
from services.gateway.page import tree_reads
from services.gateway.page.api import runs
from services.gateway.page.reads import Reads
from tests.gateway.page.conftest import step
from tests.gateway.page.made_trees import grow


async def test_metrics_of_a_long_run_come_in_parts(
    here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        await step(here, number)
    monkeypatch.setattr(runs, "MOST_STEPS", 2)
    path, found, more, after = f"/api/runs/{here.store.forge.run_id}/metrics", [], True, ""
    while more:
        page = await here.get(path + after)
        assert len(page["steps"]) <= 2
        found += [row["step"] for row in page["steps"]]
        more, after = page["more"], f"?after={found[-1]}"
    assert found == [1, 2, 3, 4, 5]


async def test_trees_of_a_policy_are_found_by_its_step(here: Any) -> None:
    forge = here.store.forge
    await grow(here.store, forge.spec(0), (2,))
    later = forge.spec(1)
    await here.store.publish(forge.opened(later))
    epoch = await here.store.claim(later.tree_id)
    root = forge.root(later)
    child = forge.child(root, policy_step=3)
    await here.store.publish(forge.segments(root, child, epoch=epoch))
    path = f"/api/runs/{forge.run_id}/trees?policy_step="
    async with asyncio.timeout(10):
        while not (await here.get(path + "3"))["trees"]:
            await asyncio.sleep(0.02)
    for number, spec in ((0, forge.spec(0)), (3, later)):
        found = (await here.get(f"{path}{number}"))["trees"]
        assert [tree["tree_id"] for tree in found] == [spec.tree_id.hex()]
        assert found[0]["policy_step"] == number


async def test_advantages_of_an_open_group_are_provisional(here: Any) -> None:
    forge = here.store.forge
    specs = [forge.spec(0, index=index, size=2) for index in range(2)]
    await here.store.publish(forge.opened(specs[1]))
    await grow(here.store, specs[0], (2,))
    tree = await here.get(f"/api/trees/{specs[0].tree_id.hex()}")
    assert tree["advantage_note"] == (
        "provisional: 1 trees of its group still grow or wait for scores"
    )
    await grow(here.store, specs[1], (2,))
    tree = await here.get(f"/api/trees/{specs[0].tree_id.hex()}")
    assert tree["advantage_note"] is None


async def test_of_a_large_group_no_advantages_are_computed(
    here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_reads, "_MOST_SEGMENTS", 2)
    await grow(here.store, here.store.forge.spec(), (2,))
    tree = await here.get(f"/api/trees/{here.store.forge.spec().tree_id.hex()}")
    assert "`banyan trees show` computes its advantages" in tree["advantage_note"]
    assert len(tree["nodes"]) == 3 and all(n["advantage"] is None for n in tree["nodes"])


async def test_no_ids_are_no_trees(here: Any) -> None:
    await here.store.grow(here.store.forge.spec())
    assert await Reads(here.store.channel).trees([]) == []


async def test_a_diagnosis_counts_the_missing_scores_of_its_own_run(
    here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = here.store.forge.run()
    run.run_id, run.recipe_json = (
        "same-1",
        json.dumps(json.loads(run.recipe_json) | {"deterministic": True}),
    )
    put = rs.PutRunRequest(run=run, request_id="same", gateway_epoch=1)
    await rpc.call(here.store.runs.PutRun, put)

    async def stats(reads: Reads, run_id: str = "") -> dict[str, int]:
        return {} if run_id == "same-1" else {"unrepeatable": 7}

    monkeypatch.setattr(Reads, "stats", stats)
    assert (await here.get("/api/runs/same-1/doctor"))["findings"] == []
