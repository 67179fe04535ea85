"""Both ends of each weight store: a learner's folder and outlet, and nodes that fetch."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from banyan.policy import PolicyVersion
from banyan.v1 import events_pb2, learner_service_pb2_grpc
from services.chassis.messaging import notices, subjects
from services.chassis.messaging.bus import Bus
from services.chassis.messaging.objects.object_store import Bucket
from services.chassis.process import process
from services.chassis.rpc import rpc
from services.learner import server
from services.learner.weights.folder import WeightFolder
from services.learner.weights.object_store import FolderOnly, ObjectStoreWeights, Outlet
from services.rollout.clients.learner import WeightClient
from services.rollout.growth.policy_selection import Published
from services.rollout.weights.delta_fetch import Rebuilder, whole_requester
from services.rollout.weights.fetch import Weights

RUN = "run-1"
STORES = ("file", "fetched", "nats")
WORDS = 700_000  # more than two blocks
SLACK_BYTES = 32 << 10  # so small that a fifth version does not fit


@dataclass
class Learner:
    """Versions of a model, each moved a little from the one before."""

    folder: WeightFolder
    outlet: Outlet
    epoch: int = 1
    address: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    step: int = -1
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.manual_seed(self.epoch)
        self.tensors = {"a": torch.randn(WORDS).bfloat16(), "b": torch.randn(33, 3).bfloat16()}

    async def publish(self, moves: float = 0.01, step: int | None = None) -> Published:
        """Publish a version in which a share `moves` of the weights moved.

        With 0 it is the one before under another number.
        """
        self.step = self.step + 1 if step is None else step
        if moves:
            at = torch.rand(WORDS) < moves
            self.tensors["a"].view(torch.int16)[at] += 1
            manifest = self.folder.put(self.tensors, self.epoch, self.step, "bfloat16")
        else:
            manifest = self.folder.repeat(self.epoch, self.step)
        self.metrics = dict(await self.outlet.put(manifest))
        policy = PolicyVersion(self.epoch, self.step, manifest.digest)
        return Published(policy, self.folder.folder.resolve(), self.address, manifest.bytes)


@dataclass
class Site:
    """A learner, and the makers of a second one and of nodes."""

    learner: Learner
    node: Callable[..., Weights]
    successor: Callable[[], Learner]
    bus: Bus | None = None
    bucket: Bucket | None = None


def weights_of(kind: str, folder: Path, bus: Bus | None, fallback: bool = False) -> Weights:
    fetch = WeightClient().fetch
    if kind != "nats":
        return Weights(folder, fetch, local=kind == "file")
    assert bus is not None
    rebuilder = Rebuilder(
        Bucket(bus.client, subjects.weights_bucket(RUN)), whole_requester(bus, RUN, "node")
    )
    return Weights(folder, fetch if fallback else None, rebuilder=rebuilder)


@contextlib.asynccontextmanager
async def site(kind: str, folder: Path, url: str, every: int = 4) -> AsyncIterator[Site]:
    """Run a weight store with its learner."""
    bus = await Bus.connect(url, "test") if kind == "nats" else None
    bucket = Bucket(bus.client, subjects.weights_bucket(RUN)) if bus else None

    def learner(epoch: int) -> Learner:
        outlet: Outlet = (
            ObjectStoreWeights(bucket, every, patience_s=20.0, slack_bytes=SLACK_BYTES)
            if bucket
            else FolderOnly()
        )
        return Learner(WeightFolder(folder / "learner"), outlet, epoch)

    first = learner(1)
    servicer: Any = server.LearnerServicer()
    servicer.learner = SimpleNamespace(weights=first.folder)
    add = learner_service_pb2_grpc.add_LearnerServiceServicer_to_server
    serving = await rpc.serve("127.0.0.1:0", [lambda s: add(servicer, s)], [server.SERVICE])
    first.address = serving.address

    def successor() -> Learner:
        second = learner(2)
        second.address, servicer.learner = serving.address, SimpleNamespace(weights=second.folder)
        return second

    def node(**more: Any) -> Weights:
        return weights_of(kind, Path(tempfile.mkdtemp(dir=folder)), bus, **more)

    asks = []
    if bus is not None and isinstance(first.outlet, ObjectStoreWeights):
        requests = notices.subscribe(
            bus.client, subjects.weights_wanted(RUN), events_pb2.WeightsWanted
        )
        asks.append(asyncio.create_task(first.outlet.serve(requests)))
        await asyncio.sleep(0)
    try:
        yield Site(first, node, successor, bus, bucket)
    finally:
        await process.cancelled(asks)
        await serving.stop()
        if bus is not None:
            await bus.close()
