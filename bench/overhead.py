"""What the services cost: steps through all five processes against the same functions called in one process."""

import asyncio
import itertools
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from banyan.recipe import Recipe
from banyan.recipe_file import load
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import gateway_service_pb2_grpc as gw_grpc
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import runstore_service_pb2_grpc as rs_grpc
from bench.oneprocess import OneProcess
from bench.table import Result, median
from services.chassis import rpc
from services.supervisor.embedded import embedded

STEPS = 10
RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"
OVER = (rs.RUN_STATE_SUCCEEDED, rs.RUN_STATE_FAILED, rs.RUN_STATE_CANCELLED)
_SET = [f"budget.steps={STEPS}", "eval.samples=0", "eval.max_rows=2", "control.groups_per_batch=8", "deterministic=true"]


def run() -> Result:
    """One deterministic run each way: the same trees, batches and policies, bit for bit. The first step is warm-up."""
    recipe = load(RECIPE, _SET)
    policies = asyncio.run(services(recipe))
    alone = OneProcess(recipe, policies[0].published.run_id)
    same = 0
    for number in range(STEPS):
        alone.step(number)
        same += alone.digest() == policies[number + 1].published.policy.digest
    result = _result(policies, alone)
    result.notes.append(f"{same} of {STEPS} policies are the same both ways, bit for bit")
    return result


async def services(recipe: Recipe, deadline_s: float = 900.0) -> list[rs.StoredPolicy]:
    """The policies of a run through the embedded system, with the store's time of each."""
    with tempfile.TemporaryDirectory() as folder:
        async with embedded(Path(folder)) as supervisor:
            state = supervisor.fleet.state
            async with rpc.channel(state.address("gateway")) as channel, rpc.channel(state.address("treestore")) as store:
                gateway: Any = gw_grpc.GatewayServiceStub(channel)
                create = gw.CreateRunRequest(recipe_json=recipe.model_dump_json(), request_id=uuid.uuid4().hex)
                run_id = (await rpc.call(gateway.CreateRun, create, 60.0, 30.0)).run.run_id
                await _over(gateway, run_id, deadline_s)
                request = rs.ReadPoliciesRequest(run_id=run_id)
                answer = await rpc.call(rs_grpc.RunStoreServiceStub(store).ReadPolicies, request)
                return list(answer.policies)


async def _over(gateway: Any, run_id: str, deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        seen = await rpc.call(gateway.GetRun, gw.GetRunRequest(run_id=run_id), 20.0, 20.0)
        if seen.run.state in OVER:
            if seen.run.state != rs.RUN_STATE_SUCCEEDED:
                raise RuntimeError(f"{run_id} failed: {seen.run.cause}")
            return
        await asyncio.sleep(0.2)
    raise TimeoutError(f"{run_id} is not over after {deadline_s:.0f} s")


def step_seconds(policies: list[rs.StoredPolicy]) -> list[float]:
    """Time from policy to policy by the store's clock, without the first."""
    at = [p.stored_unix_ms / 1000 for p in policies]
    return [b - a for a, b in itertools.pairwise(at[1:])]


def _result(policies: list[rs.StoredPolicy], alone: OneProcess) -> Result:
    result = Result("overhead")
    through, one = step_seconds(policies), alone.seconds.steps[1:]
    handed = [p.published.metrics.get("publish_seconds", 0.0) for p in policies[2:]]
    refresh = alone.seconds.refresh / len(alone.seconds.steps)
    total, base = sum(through), sum(one)
    result.add("through the services, seconds a step (mean)", total / len(through), "s")
    result.add("in one process, seconds a step (mean)", base / len(one), "s")
    result.add("overhead with the weight hand-over", 100 * (total / base - 1), "%", "bar: at most 15")
    without = total - sum(handed)
    result.add("overhead without the learner's share of the hand-over", 100 * (without / base - 1), "%", "bar: at most 5")
    result.add("hand-over: learner writes and digests the weights (median)", median(handed), "s")
    result.add("one process: weights copied in memory", refresh, "s")
    for name in sorted({k for p in policies for k in p.published.metrics if k.endswith("_seconds")}):
        values = [p.published.metrics[name] for p in policies[2:] if name in p.published.metrics]
        result.add(f"learner's {name} (median)", median(values), "s")
    result.notes.append("the node's own time to load and verify the weights is in the figure without the learner's share")
    return result
