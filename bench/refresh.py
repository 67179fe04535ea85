"""A new policy on a busy node: the time to its first segment, and its cost, by cut and by drain.

A learner's weight folder, its gRPC server, and a node's refresher on an engine that always runs 32
branches; versions follow each other on the same engine, cut and drain in turn. Time counts from the
node's notice of a policy (broker and store add milliseconds). Segments are of 16 tokens; a branch
has up to 64. Tokens of a cut branch are kept: it goes on as a new request. In each version as many
words moved by one unit as in a step of the arithmetic recipe (`deltas`): the transfer by `nats`
depends on it.

`python -m bench refresh` measures the torch engine; in .venv-vllm vLLM, which maps the file in its
worker, or receives its bytes there (`nccl`, by gloo without an accelerator).
"""

import asyncio
import contextlib
import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from banyan.policy import PolicyVersion
from banyan.recipe import Recipe
from banyan.recipe_loader.load import load
from banyan.runtime import ports
from banyan.v1 import learner_service_pb2_grpc
from bench.harness.busy import BRANCHES, Busy, Change
from bench.harness.compared import RECIPE
from bench.harness.table import Result, median
from services.chassis import models
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.objects.object_store import Bucket
from services.chassis.process import nats_server
from services.chassis.rpc import rpc
from services.chassis.weights.file import WeightManifest
from services.learner.weights.collective import HandOverServer
from services.learner.weights.folder import WeightFolder
from services.learner.weights.object_store import ObjectStoreWeights
from services.rollout.clients.learner import HandOverClient, WeightClient
from services.rollout.engines.factory import maker
from services.rollout.engines.thread import EngineThread
from services.rollout.growth.policy_selection import Published
from services.rollout.ports import Source
from services.rollout.weights.collective import CollectiveWeights
from services.rollout.weights.delta_fetch import Rebuilder
from services.rollout.weights.fetch import Weights

RUNS = int(os.environ.get("BENCH_RUNS", "5"))
MOVED = float(
    os.environ.get("BENCH_MOVED", "0.034")
)  # share of the words that change in a step of the arithmetic recipe (bench/deltas.py)
DRAIN_S = 10.0


def run() -> Result:
    """Measure cut and drain, for weights on this host and for fetched weights."""
    engine = "vllm" if find_spec("vllm") else "torch"
    result = Result(f"refresh-{engine}" if engine == "vllm" else "refresh")
    asyncio.run(_measure(engine, result))
    result.notes.append(
        f"engine {engine}, {BRANCHES} branches, medians of {RUNS}, load {os.getloadavg()[0]:.1f} "
        "at the end"
    )
    result.notes.append(f"{100 * MOVED:.1f} % of the words move from one version to the next")
    if engine == "torch":
        result.notes.append(
            "vLLM is not installed here: `.venv-vllm/bin/python -m bench refresh` measures its "
            "updates"
        )
    return result


async def _measure(engine: str, result: Result) -> None:
    changes = [
        f"resources.engine={engine}",
        f"resources.max_branches={BRANCHES}",
        "resources.kv_tokens=16384",
    ]
    recipe = load(RECIPE, changes)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        async with broker() as url, learning(recipe, Path(folder) / "learner", url) as learner:
            thread = EngineThread(maker(recipe, None))
            await thread.start()
            try:
                busy = Busy(thread)
                cells = await _cells(learner, busy, Path(folder), engine)
                for (store, how), measured in cells.items():
                    for name, says in _SAYS.items():
                        figure = median([getattr(change, name) for change in measured])
                        result.add(
                            f"{store}, {how}: {says}",
                            figure,
                            "s" if name.endswith("_s") else "tokens",
                        )
                for name, numbers in learner.sent.items():
                    unit = "s" if name.endswith("_s") else "MB"
                    result.add(f"nats, the learner: {name}", median(numbers), unit)
            finally:
                await thread.stop()


_SAYS = {
    "first_s": "to the first segment of the new policy",
    "load_s": "of it to fetch, drain and load",
    "again": "more prefilled than without it",
    "lost": "fewer sampled than without it",
}


async def _cells(
    learner: "Learner", busy: "Busy", folder: Path, engine: str
) -> dict[tuple[str, str], list[Change]]:
    fetch = WeightClient().fetch
    stores: dict[str, Source] = {
        "file": Weights(folder / "node", fetch),
        "fetched over gRPC": Weights(folder / "joined", fetch, local=False),
        "nats": Weights(folder / "rebuilt", None, rebuilder=Rebuilder(learner.bucket, _nobody)),
    }
    if engine == "vllm":
        stores["nccl (gloo)"] = CollectiveWeights(
            folder / "handed", HandOverClient("bench", 1).hand_over, 1
        )
    cells: dict[tuple[str, str], list[Change]] = {}
    await busy.change(
        learner.publish, stores["nats"], 0.0
    )  # warms up, and is the whole version that differences build upon
    for _ in range(RUNS):
        for (store, weights), (how, drain_s) in itertools.product(
            stores.items(), (("cut", 0.0), ("drain", DRAIN_S))
        ):
            if store == "nats":  # a node that has the version before, the usual case
                async with weights.held(await learner.publish()):
                    pass
            cells.setdefault((store, how), []).append(
                await busy.change(learner.publish, weights, drain_s)
            )
    return cells


async def _nobody(published: Published, reason: str) -> None:
    raise AssertionError(f"step {published.policy.step} cannot be rebuilt: {reason}")


@contextlib.asynccontextmanager
async def broker() -> AsyncIterator[str]:
    """Start a NATS server with its files on a disk; yield its address."""
    address = f"127.0.0.1:{ports.free_port()}"
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "nats.log"
        process = nats_server.start(nats_server.write_config(Path(folder), address), log)
        try:
            nats_server.await_listening(address, process, log)
            yield f"nats://{address}"
        finally:
            process.terminate()
            process.wait(10)


@dataclass
class Learner:
    """Versions of a model that differ, in a served weight folder, and in an object store."""

    tensors: dict[str, Any]
    weights: WeightFolder
    canary: Callable[[], dict[str, Any]] | None
    bucket: Bucket
    outlet: ObjectStoreWeights
    address: str = ""
    step: int = 0
    sent: dict[str, list[float]] = field(default_factory=dict)

    async def publish(self) -> Published:
        """Publish the next version in every way."""
        manifest = await asyncio.to_thread(self._write)
        metrics = await self.outlet.put(manifest)
        whole = "a whole version" if metrics["weights_whole"] else "what changed"
        self.sent.setdefault(f"{whole}, sent", []).append(metrics["weights_sent_bytes"] / 1e6)
        self.sent.setdefault(f"{whole}, in seconds_s", []).append(metrics["weights_seconds"])
        return self._published(manifest)

    def _write(self) -> WeightManifest:
        import torch

        self.step += 1
        with torch.no_grad():
            for tensor in self.tensors.values():
                flat = tensor.view(-1).view(torch.int16)
                normal = (
                    flat & 0x7FFF
                ) >= 0x80  # a unit beyond 0 is a number that kernels treat as 0
                flat[(torch.rand(len(flat)) < MOVED) & normal] += 1
        canary = self.canary() if self.canary else None
        return self.weights.put(self.tensors, 1, self.step, "bfloat16", canary)

    def _published(self, manifest: WeightManifest) -> Published:
        return Published(
            PolicyVersion(1, self.step, manifest.digest),
            self.weights.folder.resolve(),
            self.address,
            manifest.bytes,
        )


@contextlib.asynccontextmanager
async def learning(recipe: Recipe, folder: Path, nats_url: str) -> AsyncIterator[Learner]:
    """Yield a learner that publishes weights and does nothing else."""
    import torch

    from services.learner import server
    from services.learner.model import canary, master_weights
    from services.learner.model import load as model

    trained = model.load(models.resolve(recipe.model))
    masters = master_weights.Masters(trained, torch.bfloat16)
    says = (lambda: canary.of(trained, "bfloat16")) if recipe.resources.engine == "vllm" else None
    bus = await Bus.connect(nats_url, "learner")
    bucket = Bucket(bus.client, "weights-bench")
    learner = Learner(
        masters.computed(),
        WeightFolder(folder),
        says,
        bucket,
        ObjectStoreWeights(bucket, every=1000),
    )
    servicer: Any = server.LearnerServicer()
    servicer.learner = SimpleNamespace(weights=learner.weights)
    add = learner_service_pb2_grpc.add_LearnerServiceServicer_to_server
    serving = await rpc.serve("127.0.0.1:0", [lambda s: add(servicer, s)], [server.SERVICE])
    learner.address = serving.address
    servicer.hand_overs = HandOverServer(learner.weights, torch.device("cpu"), DRAIN_S)
    try:
        yield learner
    finally:
        learner.outlet.close()
        await serving.stop()
        await bus.close()
