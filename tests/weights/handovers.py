"""A learner that hands weights over, and workers that receive them, without engines."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from banyan.policy import PolicyVersion
from banyan.v1 import learner_service_pb2_grpc
from services.chassis.rpc import rpc
from services.chassis.weights import collective, file
from services.learner import server
from services.learner.weights.collective import HandOverServer
from services.learner.weights.folder import WeightFolder
from services.rollout.clients.learner import HandOverClient
from services.rollout.engines.vllm_engine.receive import Received
from services.rollout.growth.policy_selection import Published
from services.rollout.weights.collective import CollectiveWeights

AMID_BYTES = 64 << 20
DEAD = 9  # exit status of a worker that dies amid the receiving


def model(seed: int = 0) -> dict[str, torch.Tensor]:
    """Return matrices of several pieces, vectors, tied names, a value head, and an empty tensor."""
    draws = torch.Generator().manual_seed(seed)
    tied = torch.randn(70, 30, generator=draws)
    layers = {f"layer.{n}.weight": torch.randn(700, 100, generator=draws) for n in range(4)}
    rest = {
        "norm.weight": torch.randn(33, generator=draws),
        "none": torch.zeros(0, 4),
        "embed.weight": tied,
        "head.weight": tied,
    }
    return layers | rest | {f"{file.HEAD}a": torch.randn(5, generator=draws)}


@dataclass
class Learner:
    """A serving learner; tests may patch `hand_overs`."""

    folder: WeightFolder
    hand_overs: HandOverServer
    address: str
    step: int = 0

    def publish(
        self,
        seed: int = 0,
        dtype: str = "float32",
        tensors: Mapping[str, torch.Tensor] | None = None,
    ) -> Published:
        manifest = self.folder.put(tensors or model(seed), 1, self.step, dtype)
        self.step += 1
        return Published(
            PolicyVersion(1, self.step - 1, manifest.digest),
            self.folder.folder,
            self.address,
            manifest.bytes,
        )

    def node(self, folder: Path, workers: int = 1) -> CollectiveWeights:
        return CollectiveWeights(folder, HandOverClient(folder.name, workers).hand_over, workers)


@contextlib.asynccontextmanager
async def learner(folder: Path, waits_s: float = 0.0) -> AsyncIterator[Learner]:
    weights = WeightFolder(folder / "learner")
    servicer: Any = server.LearnerServicer()
    servicer.learner = SimpleNamespace(weights=weights)
    add = learner_service_pb2_grpc.add_LearnerServiceServicer_to_server
    serving = await rpc.serve("127.0.0.1:0", [lambda s: add(servicer, s)], [server.SERVICE])
    servicer.hand_overs = HandOverServer(weights, torch.device("cpu"), waits_s)
    try:
        yield Learner(weights, servicer.hand_overs, serving.address)
    finally:
        await serving.stop()


def receive(path: Path, rank: int, die_at: int = -1) -> tuple[dict[str, torch.Tensor], Received]:
    """Receive all tensors as a worker, which exits at tensor number `die_at`."""
    place = collective.read(path)
    assert place is not None
    received = Received(file.read(path), place, torch.device("cpu"))
    came: dict[str, torch.Tensor] = {}
    for at, (name, tensor) in enumerate(received.tensors(rank)):
        if at == die_at:
            os._exit(DEAD)
        came[name] = tensor
    received.check()
    return came, received


async def dying(path: Path, rank: int, at: int) -> int:
    """Run a worker in a process of its own that dies at a tensor; return its exit status."""
    code = (
        "import sys; from pathlib import Path; from tests.weights.handovers import receive as r; "
    )
    command = [
        sys.executable,
        "-c",
        code + "r(Path(sys.argv[1]), *map(int, sys.argv[2:]))",
        str(path),
        str(rank),
        str(at),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.to_thread(subprocess.run, command, env=environment, timeout=120)
    return process.returncode


def broadcasting(dies_after_s: float) -> None:
    """Print the place of a hand-over, and broadcast as its rank 0 until killed in the middle."""
    meeting = collective.Meeting("127.0.0.1", "gloo", 1, 60.0)
    print(json.dumps(asdict(meeting.place)), flush=True)
    ranks, flat_B = meeting.gathered(lambda: False), torch.zeros(AMID_BYTES, dtype=torch.uint8)
    threading.Timer(dies_after_s, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    while True:
        ranks.broadcast(flat_B)
