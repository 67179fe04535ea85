"""Cost of the services: steps through all five processes against the same functions in one.

They alternate step by step: when a policy is published the services stand still, the one process
takes its step, and the services go on (bench/harness/beside.py). Unfinished work of the services
still runs beside their next step.
"""

import asyncio
import contextlib
import itertools
import re
import string
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from banyan.recipe import Recipe
from banyan.recipe_loader.load import load
from banyan.v1 import events_pb2
from banyan.v1 import gateway_service_pb2 as gw
from banyan.v1 import gateway_service_pb2_grpc as gw_grpc
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import runstore_service_pb2_grpc as rs_grpc
from bench.harness.beside import Alone, Beside, stopped
from bench.harness.compared import RECIPE
from bench.harness.processor import Step, of_services
from bench.harness.stages import STAGES, stages
from bench.harness.table import Result, median
from services.chassis.messaging import subjects
from services.chassis.messaging.bus import Bus
from services.chassis.rpc import rpc
from services.supervisor.embedded import embedded
from services.supervisor.supervisor import Supervisor
from tests.faults.harness import tiny_model

STEPS, TURNS = 14, 6
# First steps that do not count: batches grow, and first touches of memory cost up to a second.
WARM = 5
TOKEN_S = 0.14  # the arithmetic recipe's
LONG, LONG_TURNS, LONG_TOKEN_S = (64, 192), 3, 0.02
"""Tokens of longer answers, and seconds of a position where a GPU decodes."""
PROCESSOR_STEPS, PROCESSOR_RUNS = 45, 3
BARS = {
    "arithmetic": ("bar: at most 15", "bar: at most 5", ""),
    "scripted": ("", "", "bar: at most 0.06"),
}
"""Bars of the share with the hand-over, of the share without it, and of the seconds added."""
PROCESSOR_BAR = "bar: at most 0.149"
_POLICY_S = 300.0
_LOADED = re.compile(r"policy step (\d+) \(epoch \d+\) loaded in ([\d.]+) s")
OVER = (rs.RUN_STATE_SUCCEEDED, rs.RUN_STATE_FAILED, rs.RUN_STATE_CANCELLED)
_SET = [f"budget.steps={STEPS}", "eval.samples=0", "eval.max_rows=2", "deterministic=true"]


@dataclass
class Through:
    """Run through the services: its policies, with the store's time of each, and its stages."""

    policies: list[rs.StoredPolicy] = field(default_factory=list)
    stages: dict[str, list[float]] = field(default_factory=dict)
    stood: list[float] = field(
        default_factory=list
    )  # seconds of each step in which the services were stopped
    loads: list[float] = field(
        default_factory=list
    )  # seconds of each step in which the node loaded its policy

    @property
    def steps(self) -> list[float]:
        """Seconds from policy to policy, without the steps that warm up."""
        at = [p.stored_unix_ms / 1000 for p in self.policies]
        stood = self.stood or [0.0] * len(at)
        return [
            b - a - still for (a, b), still in zip(itertools.pairwise(at), stood, strict=False)
        ][WARM:]

    def measured(self, name: str) -> list[float]:
        """Return a measure of the learner, without the steps that warm up."""
        return [p.published.metrics[name] for p in self.policies[WARM + 1 :]]


@dataclass
class Turn:
    """Run each way, of the same work."""

    through: Through
    alone: Alone

    @property
    def steps(self) -> list[float]:
        """Seconds of each step in one process, without those that warm up."""
        return self.alone.seconds.steps[WARM:]

    @property
    def handed(self) -> list[float]:
        """Seconds of the hand-over of the weights: the learner's writing, the node's check and
        load."""
        wrote, read = self.through.measured("publish_seconds"), self.through.loads[WARM:]
        return [a + b for a, b in zip(wrote, read, strict=True)]

    def overhead(self, bare: bool) -> float:
        """Return the overhead in percent of one process, over all steps. bare: without the
        hand-over."""
        spent = sum(self.through.steps) - (sum(self.handed) if bare else 0.0)
        return 100 * (spent / sum(self.steps) - 1)


def run() -> Result:
    """Measure the arithmetic recipe, and a scripted engine that takes as long for a token.

    The second has a model that trains in no time.
    """
    result = Result("overhead")
    _compare(result, "arithmetic", load(RECIPE, _SET))
    with tempfile.TemporaryDirectory() as folder:
        tiny = [f"model={tiny_model(Path(folder))}", "resources.engine=scripted"]
        tiny.append(f"resources.engine_settings={{latency_s: {TOKEN_S}, accuracy: 0.5}}")
        _compare(result, "scripted", load(RECIPE, [*_SET, *tiny]))
        for tokens in LONG:
            _compare(result, f"{tokens} tokens", _longer(tiny, tokens), LONG_TURNS)
        _add_processor(result, load(RECIPE, [*_SET, *tiny, f"budget.steps={PROCESSOR_STEPS}"]))
    return result


def _longer(tiny: Sequence[str], tokens: int) -> Recipe:
    """Return a recipe whose answers are random digits with spaces, all of one length."""
    recipe = load(RECIPE, [*_SET, *tiny])
    chain = {"": dict.fromkeys(string.digits, 0.1), **{key: {" ": 1.0} for key in string.digits}}
    engine = {"latency_s": LONG_TOKEN_S, "chain": chain}
    parts = {
        "task": {"name": "chains-mod", "size": 512, "holdout": 0.1},
        "generate": {**recipe.generate.model_dump(), "max_new_tokens": tokens},
        "filter": [{"name": "number", "settings": {"answer": "last", "take": "last"}}],
        "resources": {**recipe.resources.model_dump(), "engine_settings": engine},
    }
    return Recipe.model_validate(recipe.model_dump() | parts)


def _add_processor(result: Result, recipe: Recipe) -> None:
    """Measure the processor time of each service a step, where the engine costs little."""
    runs = [asyncio.run(processor(recipe)) for _ in range(PROCESSOR_RUNS)]
    for name in runs[0].services:
        whole = [run.services[name].whole for run in runs]
        loop = median([run.services[name].loop for run in runs])
        said = f"{min(whole):.3f} to {max(whole):.3f}, event loop {loop:.3f}"
        result.add(f"scripted: processor time of {name}, a step", median(whole), "s", said)
    sums = [sum(spent.whole for spent in run.services.values()) for run in runs]
    said = f"{PROCESSOR_BAR}; {min(sums):.3f} to {max(sums):.3f}"
    result.add("scripted: processor time of all services, a step", median(sums), "s", said)
    result.notes.append(
        f"processor time: medians of {PROCESSOR_RUNS} runs, means over steps {WARM + 1} to"
        f" {PROCESSOR_STEPS}; the learner's has the training of the tiny model in it"
    )


def _compare(result: Result, name: str, recipe: Recipe, count: int = TURNS) -> None:
    """Alternate short deterministic runs each way: equal trees, batches and policies, bit for
    bit."""
    turns = []
    for number in range(count):
        turns.append(asyncio.run(turn(recipe)))
        whole, bare = (turns[-1].overhead(bare=bare) for bare in (False, True))
        print(
            f"  {name}, turn {number + 1}: {whole:.1f} % with the weight hand-over, {bare:.1f} % "
            "without",
            flush=True,
        )
    _report(result, name, turns)
    policies = [p for t in turns for p in zip(t.alone.digests, t.through.policies[1:], strict=True)]
    same = sum(digest == stored.published.policy.digest for digest, stored in policies)
    result.notes.append(
        f"{name}: overheads are medians of {count} turns, seconds means over {count} x "
        f"{STEPS - WARM} steps"
    )
    result.notes.append(
        f"{name}: {same} of {len(policies)} policies are the same both ways, bit for bit"
    )


async def turn(recipe: Recipe, deadline_s: float = 900.0) -> Turn:
    """Run the embedded system, and its steps in one process, each after the policy that it
    begins with."""
    async with AsyncExitStack() as stack:
        started = await stack.enter_async_context(run_of(recipe))
        beside = stack.enter_context(Beside(recipe, started.run_id))
        await beside.ready()
        through, alone = Through(), None
        async with asyncio.timeout(deadline_s):
            for number in range(STEPS):
                await started.policy(number)
                with stopped(
                    [child.pid for child in started.supervisor.children.values() if child.running]
                ) as still:
                    alone = await beside.step(number)
                through.stood.append(still.seconds)
            await started.read(through)
        through.loads = _loads(
            started.supervisor.fleet.state.log(f"rollout-{started.run_id}-0"), through.stood
        )
    assert alone is not None
    first = through.stages[STAGES[0]]
    through.stages[STAGES[0]] = [
        spent - still for spent, still in zip(first, through.stood[1:], strict=True)
    ]
    return Turn(through, alone)


async def processor(recipe: Recipe, warm: int = WARM, deadline_s: float = 900.0) -> Step:
    """Run the embedded system; return the mean processor time of a step, by service."""
    last = recipe.budget.steps
    async with asyncio.timeout(deadline_s), run_of(recipe) as started:
        await started.policy(warm)
        before, began = of_services(started.supervisor), time.monotonic()
        await started.policy(last)
        after, seconds = of_services(started.supervisor), time.monotonic() - began
    steps = last - warm
    return Step(seconds / steps, {name: (after[name] - before[name]) / steps for name in before})


async def services(recipe: Recipe, deadline_s: float = 900.0) -> Through:
    """Run the embedded system."""
    async with asyncio.timeout(deadline_s), run_of(recipe) as started:
        through = Through()
        await started.read(through)
        return through


@dataclass
class Started:
    """A system that runs, with its run."""

    supervisor: Supervisor
    gateway: Any
    store: Any
    published: Any  # a subscription to policies, from before the run
    folder: Path
    run_id: str

    async def policy(self, step: int) -> None:
        """Wait until a policy is published."""
        newest = -1
        while newest < step:
            message = await self.published.next_msg(timeout=_POLICY_S)
            newest = events_pb2.PolicyPublished.FromString(message.data).policy.step

    async def read(self, through: Through) -> None:
        """Wait for the run's end, and read its times."""
        while True:
            response = await rpc.call(
                self.gateway.GetRun, gw.GetRunRequest(run_id=self.run_id), 20.0, 20.0
            )
            if response.run.state in OVER:
                break
            await asyncio.sleep(
                5.0
            )  # a look goes through three processes: it would take part in what is measured
        if response.run.state != rs.RUN_STATE_SUCCEEDED:
            raise RuntimeError(f"{self.run_id} failed: {response.run.cause}")
        answer = await rpc.call(self.store.ReadPolicies, rs.ReadPoliciesRequest(run_id=self.run_id))
        through.policies = list(answer.policies)
        through.stages = stages(self.folder / "store.sqlite", self.run_id)


@contextlib.asynccontextmanager
async def run_of(recipe: Recipe, extra: Mapping[str, str] | None = None) -> AsyncIterator[Started]:
    """Start the embedded system and its run. extra: environment of every process."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        supervisor = await stack.enter_async_context(embedded(folder, extra=extra))
        state = supervisor.fleet.state
        channels = [
            rpc.channel(state.address(name), secret=state.secret)
            for name in ("gateway", "treestore")
        ]
        channel, store = [await stack.enter_async_context(channel) for channel in channels]
        gateway: Any = gw_grpc.GatewayServiceStub(channel)
        creds = str(state.path / "nats" / "services.creds")
        bus = await Bus.connect(f"nats://{state.address('nats')}", "bench", creds=creds)
        stack.push_async_callback(bus.close)
        published = await bus.client.subscribe(subjects.train("*", "policy"))
        create = gw.CreateRunRequest(
            recipe_json=recipe.model_dump_json(), request_id=uuid.uuid4().hex
        )
        run_id = (await rpc.call(gateway.CreateRun, create, 60.0, 30.0)).run.run_id
        yield Started(
            supervisor, gateway, rs_grpc.RunStoreServiceStub(store), published, folder, run_id
        )


def _loads(log: Path, stood: Sequence[float]) -> list[float]:
    """Return seconds in which the node loaded the policy of each step, by its log.

    Seconds in which it stood still do not count.
    """
    loaded = {int(step): float(spent) for step, spent in _LOADED.findall(log.read_text())}
    return [
        loaded[step] - (still if loaded[step] > still else 0.0) for step, still in enumerate(stood)
    ]


def _report(result: Result, name: str, turns: Sequence[Turn]) -> None:
    whole, bare = ([turn.overhead(bare=bare) for turn in turns] for bare in (False, True))
    whole_bar, bare_bar, added_bar = BARS.get(name, ("", "", ""))
    result.add(f"{name}: overhead with the weight hand-over", median(whole), "%", whole_bar)
    result.add(f"{name}: overhead without the hand-over", median(bare), "%", bare_bar)
    result.add(
        f"{name}: least and most of a turn, without the hand-over",
        min(bare),
        "%",
        f"to {max(bare):.1f}",
    )
    through = mean(x for t in turns for x in t.through.steps)
    alone = mean(x for t in turns for x in t.steps)
    result.add(f"{name}: through the services, a step", through, "s")
    result.add(f"{name}: in one process, a step", alone, "s")
    result.add(f"{name}: added by the services, a step", through - alone, "s", added_bar)
    for stage in STAGES:
        spent = mean(x for t in turns for x in t.through.stages[stage][WARM - 1 :])
        result.add(f"{name}, services: {stage}", spent, "s")
    for what, metric in (
        ("training", "train_seconds"),
        ("the learner's hand-over", "publish_seconds"),
    ):
        result.add(
            f"{name}, services: of it {what}",
            mean(x for t in turns for x in t.through.measured(metric)),
            "s",
        )
    for where, loads in (
        ("", [t.through.loads for t in turns]),
        (", alone", [t.alone.loads for t in turns]),
    ):
        seconds = mean(x for turn in loads for x in turn[WARM:])
        result.add(f"{name}: the node's verifying and loading of a policy{where}", seconds, "s")
    for what in ("sample", "score", "prepare", "train", "refresh"):
        spent = mean(x for t in turns for x in getattr(t.alone.seconds, what)[WARM:])
        result.add(f"{name}, one process: {what}", spent, "s")
