"""What the services cost: steps through all five processes against the same functions called in one process."""

import asyncio
import itertools
import multiprocessing
import os
import tempfile
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from banyan import torchenv
from banyan.recipe import Recipe
from banyan.recipe_file import load
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import gateway_service_pb2_grpc as gw_grpc
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import runstore_service_pb2_grpc as rs_grpc
from bench.compared import RECIPE
from bench.oneprocess import OneProcess, Seconds
from bench.stages import STAGES, stages
from bench.table import Result, median
from services.chassis import rpc
from services.supervisor.embedded import embedded
from tests.faults.harness import tiny_model

STEPS, TURNS = 14, 6
WARM = 5  # first steps that do not count: batches grow, and memory touched for the first time costs up to a second
TOKEN_S = 0.14  # as the quick start's
OVER = (rs.RUN_STATE_SUCCEEDED, rs.RUN_STATE_FAILED, rs.RUN_STATE_CANCELLED)
_SET = [f"budget.steps={STEPS}", "eval.samples=0", "eval.max_rows=2", "deterministic=true"]


@dataclass
class Through:
    """A run through the services: its policies, with the store's time of each, and where the time went."""

    policies: list[rs.StoredPolicy]
    stages: dict[str, list[float]]

    @property
    def steps(self) -> list[float]:
        """Seconds from policy to policy, without the steps that warm up."""
        at = [p.stored_unix_ms / 1000 for p in self.policies]
        return [b - a for a, b in itertools.pairwise(at[WARM:])]

    def measured(self, name: str) -> list[float]:
        """A measure of the learner, without the steps that warm up."""
        return [p.published.metrics[name] for p in self.policies[WARM + 1 :]]


@dataclass
class Alone:
    """The same steps in one process: where their time went, what each policy was, what a node would take to load it."""

    seconds: Seconds
    digests: list[bytes] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    @property
    def steps(self) -> list[float]:
        """Seconds of each step, without those that warm up."""
        return self.seconds.steps[WARM:]


def alone(recipe: Recipe, run_id: str) -> Alone:
    """The steps in a new process: memory that an earlier turn had touched would cost nothing any more."""
    before = dict(os.environ)
    torchenv.bind(os.environ, len(torchenv.CORES))  # as the services do; what is spawned reads it
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(_alone, recipe.model_dump_json(), run_id).result(timeout=900.0)
    finally:
        if "OMP_PROC_BIND" not in before:
            del os.environ["OMP_PROC_BIND"]


def _alone(recipe_json: str, run_id: str) -> Alone:
    process = OneProcess(Recipe.model_validate_json(recipe_json), run_id)
    made = Alone(process.seconds)
    for number in range(STEPS):
        process.step(number)
        digest, seconds = process.hand_over()
        made.digests.append(digest)
        made.loads.append(seconds)
    return made


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
    """Short deterministic runs each way, in turn: the same trees, batches and policies, bit for bit."""
    turns: list[tuple[Through, Alone]] = []
    same = 0
    for _ in range(TURNS):
        through = asyncio.run(services(recipe))
        one = alone(recipe, through.policies[0].published.run_id)
        same += sum(d == p.published.policy.digest for d, p in zip(one.digests, through.policies[1:], strict=True))
        turns.append((through, one))
    _report(result, name, turns)
    result.notes.append(f"{name}: overheads are medians of {TURNS} turns, seconds means over {TURNS} x {STEPS - WARM} steps")
    result.notes.append(f"{name}: {same} of {TURNS * STEPS} policies are the same both ways, bit for bit")


async def services(recipe: Recipe, deadline_s: float = 900.0) -> Through:
    """A run through the embedded system."""
    with tempfile.TemporaryDirectory() as folder:
        async with embedded(Path(folder)) as supervisor:
            state = supervisor.fleet.state
            addresses = state.address("gateway"), state.address("treestore")
            channels = [rpc.channel(address, secret=state.secret) for address in addresses]
            async with channels[0] as channel, channels[1] as store:
                gateway: Any = gw_grpc.GatewayServiceStub(channel)
                create = gw.CreateRunRequest(recipe_json=recipe.model_dump_json(), request_id=uuid.uuid4().hex)
                run_id = (await rpc.call(gateway.CreateRun, create, 60.0, 30.0)).run.run_id
                await _over(gateway, run_id, deadline_s)
                request = rs.ReadPoliciesRequest(run_id=run_id)
                answer = await rpc.call(rs_grpc.RunStoreServiceStub(store).ReadPolicies, request)
        return Through(list(answer.policies), stages(Path(folder) / "store.sqlite", run_id))


async def _over(gateway: Any, run_id: str, deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        seen = await rpc.call(gateway.GetRun, gw.GetRunRequest(run_id=run_id), 20.0, 20.0)
        if seen.run.state in OVER:
            if seen.run.state != rs.RUN_STATE_SUCCEEDED:
                raise RuntimeError(f"{run_id} failed: {seen.run.cause}")
            return
        await asyncio.sleep(5.0)  # a look goes through three processes: it would take part in what is measured
    raise TimeoutError(f"{run_id} is not over after {deadline_s:.0f} s")


def _report(result: Result, name: str, turns: Sequence[tuple[Through, Alone]]) -> None:
    """The hand-over of the weights is the learner's writing of them and the node's verifying and loading."""
    whole, bare = [], []
    for through, one in turns:
        handed = sum(through.measured("publish_seconds")) + sum(one.loads[WARM:])
        whole.append(100 * (sum(through.steps) / sum(one.steps) - 1))
        bare.append(100 * ((sum(through.steps) - handed) / sum(one.steps) - 1))
    result.add(f"{name}: overhead with the weight hand-over", median(whole), "%", "bar: at most 15")
    result.add(f"{name}: overhead without it", median(bare), "%", "bar: at most 5")
    result.add(f"{name}: through the services, a step", mean(x for t, _ in turns for x in t.steps), "s")
    result.add(f"{name}: in one process, a step", mean(x for _, a in turns for x in a.steps), "s")
    for stage in STAGES:
        result.add(f"{name}, services: {stage}", mean(x for t, _ in turns for x in t.stages[stage][WARM - 1 :]), "s")
    for what, metric in (("training", "train_seconds"), ("the learner's hand-over", "publish_seconds")):
        result.add(f"{name}, services: of it {what}", mean(x for t, _ in turns for x in t.measured(metric)), "s")
    loads = mean(x for _, a in turns for x in a.loads[WARM:])
    result.add(f"{name}: a node's verifying and loading of a policy, alone", loads, "s")
    for what in ("sample", "score", "study", "train", "refresh"):
        spent = mean(x for _, a in turns for x in getattr(a.seconds, what)[WARM:])
        result.add(f"{name}, one process: {what}", spent, "s")
