"""A new policy on a busy node: how soon the first segment of it comes, and what the change costs, by cut and by drain.

A learner's weight folder, its gRPC server, and a node's refresher on an engine that always runs 32 branches; versions follow
each other on the same engine, cut and drain in turn. Time counts from when the node hears of a policy (broker and store add
milliseconds). Segments are of 16 tokens; a branch has up to 64. What a cut branch had is kept: it goes on as a new request.

`python -m bench refresh` measures the torch engine; in .venv-vllm vLLM, which maps the file in its worker.
"""

import asyncio
import contextlib
import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from banyan.recipe import Recipe
from banyan.recipe_file import load
from banyan.v1 import learner_service_pb2_grpc
from bench.busy import BRANCHES, Busy, Change
from bench.table import Result, median
from services.chassis import models, rpc
from services.chassis.weightfile import WeightManifest
from services.learner.weights import WeightFolder
from services.rollout.engines.make import maker
from services.rollout.engines.port import Policy
from services.rollout.engines.thread import EngineThread
from services.rollout.policies import Published
from services.rollout.store import WeightServer
from services.rollout.weights import Weights

RUNS = int(os.environ.get("BENCH_RUNS", "5"))
DRAIN_S = 10.0
RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"


def run() -> Result:
    """Cut and drain, for weights that lie on this host and weights that are fetched."""
    engine = "vllm" if find_spec("vllm") else "torch"
    result = Result(f"refresh-{engine}" if engine == "vllm" else "refresh")
    asyncio.run(_measure(engine, result))
    result.notes.append(f"engine {engine}, {BRANCHES} branches, medians of {RUNS}, load {os.getloadavg()[0]:.1f} at the end")
    result.notes.append("weight store `nats`: does not exist")
    if engine == "torch":
        result.notes.append("vLLM is not installed here: `.venv-vllm/bin/python -m bench refresh` measures its updates")
    return result


async def _measure(engine: str, result: Result) -> None:
    changes = [f"resources.engine={engine}", f"resources.max_branches={BRANCHES}", "resources.kv_tokens=16384"]
    recipe = load(RECIPE, changes)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        async with learning(recipe, Path(folder) / "learner") as learner:
            thread = EngineThread(maker(recipe, None))
            await thread.start()
            try:
                busy = Busy(thread)
                for (store, how), found in (await _cells(learner, busy, Path(folder))).items():
                    for name, says in _SAYS.items():
                        figure = median([getattr(one, name) for one in found])
                        result.add(f"{store}, {how}: {says}", figure, "s" if name.endswith("_s") else "tokens")
            finally:
                await thread.stop()


_SAYS = {
    "first_s": "to the first segment of the new policy",
    "load_s": "of it to fetch, drain and load",
    "again": "more prefilled than without it",
    "lost": "fewer sampled than without it",
}


async def _cells(learner: "Learner", busy: "Busy", folder: Path) -> dict[tuple[str, str], list[Change]]:
    fetch = WeightServer().fetch
    stores = {"file": Weights(folder / "node", fetch), "fetched over gRPC": Weights(folder / "joined", fetch, local=False)}
    found: dict[tuple[str, str], list[Change]] = {}
    await busy.change(learner.publish, stores["file"], 0.0)  # warms up
    for _ in range(RUNS):
        for (store, weights), (how, drain_s) in itertools.product(stores.items(), (("cut", 0.0), ("drain", DRAIN_S))):
            found.setdefault((store, how), []).append(await busy.change(learner.publish, weights, drain_s))
    return found


@dataclass
class Learner:
    """Versions of a model that differ, in a weight folder that is served."""

    tensors: dict[str, Any]
    weights: WeightFolder
    canary: Callable[[], dict[str, Any]] | None
    address: str = ""
    step: int = 0

    def publish(self) -> Published:
        """Writes the next version."""
        self.step += 1
        self.tensors["model.norm.weight"][-1] *= 1.01
        said = self.canary() if self.canary else None
        made: WeightManifest = self.weights.put(self.tensors, 1, self.step, "bfloat16", said)
        return Published(Policy(1, self.step, made.digest), self.weights.folder.resolve(), self.address, made.bytes)


@contextlib.asynccontextmanager
async def learning(recipe: Recipe, folder: Path) -> AsyncIterator[Learner]:
    """A learner that hands out weights and does nothing else."""
    import torch

    from services.learner import canary, masters, model, server

    trained = model.load(models.resolve(recipe.model))
    held = masters.Masters(trained, torch.bfloat16)
    says = (lambda: canary.of(trained, "bfloat16")) if recipe.resources.engine == "vllm" else None
    learner = Learner(held.computed(), WeightFolder(folder), says)
    servicer: Any = server.LearnerServicer()
    servicer.learner = SimpleNamespace(weights=learner.weights)
    add = learner_service_pb2_grpc.add_LearnerServiceServicer_to_server
    serving = await rpc.serve("127.0.0.1:0", [lambda s: add(servicer, s)], [server.SERVICE])
    learner.address = serving.address
    try:
        yield learner
    finally:
        await serving.stop()
