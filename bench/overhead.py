"""What the services cost: steps through all five processes against the same functions called in one process."""

import asyncio
import itertools
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from banyan.recipe import Recipe
from banyan.recipe_file import load
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import gateway_service_pb2_grpc as gw_grpc
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import runstore_service_pb2_grpc as rs_grpc
from bench.oneprocess import OneProcess
from bench.pauses import Pauses
from bench.stages import STAGES, stages
from bench.table import Result, median
from services.chassis import rpc, subjects
from services.chassis.bus import Bus
from services.supervisor.embedded import embedded
from services.supervisor.supervisor import Supervisor
from tests.faults.harness import tiny_model

STEPS = 12
TOKEN_S = 0.14  # as the quick start's
RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"
OVER = (rs.RUN_STATE_SUCCEEDED, rs.RUN_STATE_FAILED, rs.RUN_STATE_CANCELLED)
_SET = [f"budget.steps={STEPS}", "eval.samples=0", "eval.max_rows=2", "control.groups_per_batch=8", "deterministic=true"]


@dataclass
class Through:
    """A run through the services: its policies, their times, and where the time went; pauses are taken out."""

    policies: list[rs.StoredPolicy]
    at_s: list[float]
    stages: dict[str, list[float]]


@dataclass
class Alone:
    """The same steps in one process."""

    process: OneProcess
    digests: list[bytes] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    def step(self) -> None:
        """One step, and what handing its policy over would take."""
        self.process.step(len(self.digests))
        digest, seconds = self.process.hand_over()
        self.digests.append(digest)
        self.loads.append(seconds)


def run() -> Result:
    """The quick start, and a scripted engine that takes as long for a token with a model that trains in no time."""
    result = Result("overhead")
    _compare(result, "quick start", load(RECIPE, _SET))
    with tempfile.TemporaryDirectory() as folder:
        tiny = [f"model={tiny_model(Path(folder))}", "resources.engine=scripted"]
        tiny.append(f"resources.engine_settings={{latency_s: {TOKEN_S}, accuracy: 0.5}}")
        _compare(result, "scripted", load(RECIPE, [*_SET, *tiny]))
    return result


def _compare(result: Result, name: str, recipe: Recipe) -> None:
    """A step through the services, then the same step in one process while they are stopped, and so on: whatever else the
    machine does falls on both. The run is deterministic, so both ways make the same policies, bit for bit."""
    through, alone = asyncio.run(services(recipe, beside=True))
    assert alone is not None
    same = sum(d == p.published.policy.digest for d, p in zip(alone.digests, through.policies[1:], strict=True))
    _report(result, name, through, alone)
    result.notes.append(f"{name}: seconds are means over {STEPS - 1} steps")
    result.notes.append(f"{name}: {same} of {len(alone.digests)} policies are the same both ways, bit for bit")


async def services(recipe: Recipe, beside: bool = False, deadline_s: float = 900.0) -> tuple[Through, Alone | None]:
    """A run through the embedded system; with `beside`, every step is made in one process too, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        async with embedded(Path(folder)) as supervisor:
            state = supervisor.fleet.state
            pauses = Pauses()
            addresses = state.address("gateway"), state.address("treestore")
            channels = [rpc.channel(address, secret=state.secret) for address in addresses]
            async with channels[0] as channel, channels[1] as store:
                gateway: Any = gw_grpc.GatewayServiceStub(channel)
                create = gw.CreateRunRequest(recipe_json=recipe.model_dump_json(), request_id=uuid.uuid4().hex)
                run_id = (await rpc.call(gateway.CreateRun, create, 60.0, 30.0)).run.run_id
                alone = await _beside(supervisor, recipe, run_id, pauses) if beside else None
                await _over(gateway, run_id, deadline_s)
                request = rs.ReadPoliciesRequest(run_id=run_id)
                answer = await rpc.call(rs_grpc.RunStoreServiceStub(store).ReadPolicies, request)
        policies = list(answer.policies)
        at_s = [pauses.live_ms(p.stored_unix_ms) / 1000 for p in policies]
        spent = stages(Path(folder) / "store.sqlite", run_id, pauses.live_ms)
        return Through(policies, at_s, spent), alone


async def _beside(supervisor: Supervisor, recipe: Recipe, run_id: str, pauses: Pauses) -> Alone:
    state = supervisor.fleet.state
    bus = await Bus.connect(f"nats://{state.address('nats')}", "bench", creds=str(state.path / "nats" / "services.creds"))
    alone: Alone | None = None
    try:
        async for _ in bus.listen(subjects.TRAIN, [subjects.train(run_id, "policy")]):
            with pauses.of([child.pid for child in supervisor.children.values()]):
                if alone is None:  # the base policy: nothing was trained yet
                    alone = Alone(OneProcess(recipe, run_id))
                else:
                    alone.step()
            if len(alone.digests) == recipe.budget.steps:
                return alone
    finally:
        await bus.close()
    raise RuntimeError(f"{run_id} ended early")


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


def step_seconds(through: Through) -> list[float]:
    """Time from policy to policy by the store's clock, without the first."""
    return [b - a for a, b in itertools.pairwise(through.at_s[1:])]


def _report(result: Result, name: str, through: Through, alone: Alone) -> None:
    """The hand-over of the weights is the learner's writing of them and the node's verifying and loading."""
    steps, one, loads_s = step_seconds(through), alone.process.seconds.steps[1:], alone.loads[1:]
    metrics = [p.published.metrics for p in through.policies[2:]]
    put_s = [said["publish_seconds"] for said in metrics]
    whole = [100 * (a / b - 1) for a, b in zip(steps, one, strict=True)]
    bare = [100 * ((a - p - n) / b - 1) for a, b, p, n in zip(steps, one, put_s, loads_s, strict=True)]
    result.add(f"{name}: overhead with the weight hand-over (median of steps)", median(whole), "%", "bar: at most 15")
    result.add(f"{name}: overhead without it (median of steps)", median(bare), "%", "bar: at most 5")
    result.add(f"{name}: through the services, a step", mean(steps), "s")
    result.add(f"{name}: in one process, a step", mean(one), "s")
    for stage in STAGES:
        result.add(f"{name}, services: {stage}", mean(through.stages[stage]), "s")
    result.add(f"{name}, services: of it training", mean([said["train_seconds"] for said in metrics]), "s")
    result.add(f"{name}, services: of it the learner's hand-over", mean(put_s), "s")
    result.add(f"{name}: a node's verifying and loading of a policy, alone", mean(loads_s), "s")
    for what in ("sample", "score", "study", "train", "refresh"):
        result.add(f"{name}, one process: {what}", getattr(alone.process.seconds, what) / len(alone.digests), "s")
