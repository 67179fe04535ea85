"""The gateway on the real treestore and broker: opening, failing, fencing and restarting."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from banyan.runtime import ports
from banyan.v1 import gateway_service_pb2 as pb
from banyan.v1 import runstore_service_pb2 as runs
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as lineage
from banyan.v1.gateway_service_pb2_grpc import GatewayServiceStub
from banyan.v1.runstore_service_pb2 import RunState as S
from banyan.v1.runstore_service_pb2_grpc import RunStoreServiceStub
from banyan.v1.treestore_service_pb2_grpc import TreeStoreServiceStub
from services.chassis.rpc import rpc
from services.gateway.join import tls
from tests.gateway.live_site import Site, channel, site, store_and_broker


@pytest.fixture
async def here(tmp_path):
    async with site(tmp_path) as live:
        yield live


async def test_groups_are_opened_once_the_base_policy_is_there(
    here: Site, recipe_of, eventually
) -> None:
    run = await here.create(recipe_of(task={"holdout": 0.0}, generate={"trees": 2}))
    desired = await rpc.call(here.runs.WatchDesired, runs.WatchDesiredRequest())
    assert {(p.service, p.count) for p in desired.processes} <= {("learner", 1), ("rollout", 1)}
    await here.publish_policy(run.run_id, 0)

    async def opened() -> bool:
        groups = (await here.progress(run.run_id)).groups
        return (groups.opened, groups.open) == (4, 4)

    await eventually(opened)
    listed = await rpc.call(
        here.trees.ListTrees, lineage.ListTreesRequest(filter=lineage.TreeFilter(run_id=run.run_id))
    )
    assert len(listed.trees) == 8
    assert (await here.run(run.run_id)).state == S.RUN_STATE_TRAINING


async def test_evaluations_come_first_where_rows_are_held_out(
    here: Site, recipe_of, eventually
) -> None:
    run = await here.create(recipe_of())
    await here.publish_policy(run.run_id, 0)

    async def opened() -> bool:
        progress = await here.progress(run.run_id)
        return {e.label: e.groups for e in progress.evals} == {
            "before-greedy": 3,
            "before-sampled": 3,
        }

    await eventually(opened)
    assert (await here.progress(run.run_id)).groups.opened == 0


async def test_a_run_on_which_every_node_dies_fails_with_the_reason(
    here: Site, recipe_of, eventually
) -> None:
    recipe = recipe_of(task={"holdout": 0.0}, control={"max_claims": 1, "groups_per_batch": 1})
    run = await here.create(recipe)
    await here.publish_policy(run.run_id, 0)

    async def die() -> None:
        tickets: Counter[bytes] = Counter()
        begins = runs.PutMemberRequest(
            member=runs.Member(run_id=run.run_id, node_id="dies"), begins=True
        )
        growing = lineage.TreeFilter(run_id=run.run_id, states=[tree_pb2.TREE_STATE_GROWING])
        while True:
            listed = await rpc.call(here.trees.ListTrees, lineage.ListTreesRequest(filter=growing))
            for tree_id in (tree.tree_id for tree in listed.trees):
                tickets[tree_id] += 1
                claim = lineage.ClaimTreeRequest(
                    tree_id=tree_id, node_id="dies", ticket=tickets[tree_id]
                )
                await rpc.call(here.trees.ClaimTree, claim)
            # Its trees are queued again under the next tickets.
            await rpc.call(here.runs.PutMember, begins)
            await asyncio.sleep(0.01)

    dying = asyncio.create_task(die())

    async def failed() -> bool:
        return (await here.run(run.run_id)).state == S.RUN_STATE_FAILED

    await eventually(failed, 20.0)
    dying.cancel()
    cause = (await here.run(run.run_id)).cause
    assert (
        cause.startswith("10 groups in a row were dropped and none closed")
        and "NO_PROGRESS" in cause
    )

    async def wanted_no_more() -> bool:
        return not (await rpc.call(here.runs.WatchDesired, runs.WatchDesiredRequest())).processes

    await eventually(wanted_no_more)


async def test_a_second_gateway_takes_over_and_the_first_stops(
    here: Site, recipe_of, eventually
) -> None:
    run = await here.create(recipe_of(task={"holdout": 0.0}))
    await rpc.call(here.runs.TakeGatewayEpoch, runs.TakeGatewayEpochRequest(gateway_id="newer"))
    await here.publish_policy(run.run_id, 0)
    with pytest.raises(Exception, match="not in force"):
        async with asyncio.timeout(10):
            await here.driving


def _start(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "services.gateway"], env={**os.environ, **environment}
    )


async def _listening(address: str) -> Any:
    async with channel(address) as opened:
        await rpc.call(GatewayServiceStub(opened).ListRuns, pb.ListRunsRequest(), patience_s=20.0)


async def test_a_killed_gateway_process_goes_on_where_it_was(
    tmp_path, recipe_of, eventually
) -> None:
    async with store_and_broker(tmp_path) as (nats, creds, store), channel(store) as stored:
        address = f"127.0.0.1:{ports.free_port()}"
        environment = {
            "BANYAN_NATS": f"nats://{nats}", "BANYAN_NATS_CREDS": creds, "BANYAN_STORE": store,
            "BANYAN_NATS_TLS_ROOT": str(tls.certificate(tmp_path)),
            "BANYAN_NATS_TLS_NAME": tls.NAME,
            "BANYAN_LISTEN": address, "BANYAN_STATE": str(tmp_path),
        }  # fmt: skip
        process = _start(environment)
        try:
            await _listening(address)
            recipe = recipe_of(
                task={"holdout": 0.0}, generate={"trees": 2}, control={"groups_per_batch": 100}
            )
            async with channel(address) as opened:
                request = pb.CreateRunRequest(recipe_json=recipe.model_dump_json())
                run_id = (await rpc.call(GatewayServiceStub(opened).CreateRun, request)).run.run_id
            here = Site(
                state=tmp_path,
                settings=None,
                running=None,
                gateway=None,
                runs=RunStoreServiceStub(stored),
                trees=TreeStoreServiceStub(stored),
            )
            await here.publish_policy(run_id, 0)

            async def begun() -> bool:
                return (await here.progress(run_id)).groups.open > 0

            await eventually(begun, 10.0)
            # In the middle of 200 trees, if the machine is slow enough.
            os.kill(process.pid, signal.SIGKILL)
            process.wait(10)
            process = _start(environment)
            await _listening(address)

            async def whole() -> bool:
                groups = (await here.progress(run_id)).groups
                return (groups.opened, groups.open) == (100, 100)

            await eventually(whole, 20.0)
            stats = await rpc.call(here.trees.GetStats, lineage.GetStatsRequest(run_id=run_id))
            assert stats.counts["trees"] == 200
        finally:
            process.terminate()
            assert process.wait(10) == 0


async def test_a_port_in_use_ends_the_process_with_one_line(tmp_path) -> None:
    async with store_and_broker(tmp_path) as (nats, creds, store):
        environment = {
            "BANYAN_NATS": f"nats://{nats}",
            "BANYAN_NATS_CREDS": creds,
            "BANYAN_NATS_TLS_ROOT": str(tls.certificate(tmp_path)),
            "BANYAN_NATS_TLS_NAME": tls.NAME,
            "BANYAN_STORE": store,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.gateway",
            env={**os.environ, **environment, "BANYAN_LISTEN": nats}, stderr=subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(30):
            _, stderr = await process.communicate()
    message = stderr.decode()
    assert process.returncode == 2
    assert f"cannot listen on {nats}" in message and "Traceback" not in message


async def test_the_recipe_in_the_store_is_the_resolved_one(here: Site, recipe_of) -> None:
    run = await here.create(recipe_of())
    assert json.loads(run.recipe_json)["optimise"]["advantage"] == "grpo"
    assert run.folder == str(here.state.resolve() / "runs" / run.run_id)
