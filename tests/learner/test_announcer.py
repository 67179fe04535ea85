"""The announcement of a policy comes after its weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from banyan.errors import DeadlineMissed
from banyan.v1 import events_pb2
from services.chassis.weights import file
from services.chassis.weights.file import WeightManifest
from services.learner.announcer import Announcer
from services.learner.position import Position
from services.learner.weights.folder import WeightFolder
from services.learner.weights.outlet import FolderOnly
from tests.learner.in_memory_learner import RUN, MemoryStore, grown


class CheckedStore(MemoryStore):
    """A store that checks, as a node would, that an announced policy's weights can be fetched."""

    def __init__(self, outlet: "RecordingOutlet") -> None:
        super().__init__(grown)
        self.outlet = outlet

    async def put_policy(self, policy: events_pb2.PolicyPublished, replayed: bool = False) -> None:
        step = policy.policy.step
        file.open_verified(Path(policy.path) / f"policy-{policy.policy.learner_epoch}-{step}.json")
        assert replayed or policy.policy.digest in self.outlet.sent, (
            f"policy {step} is announced before its weights are sent"
        )
        await super().put_policy(policy, replayed)


class RecordingOutlet(FolderOnly):
    """An outlet that records what it sends; while `away` it fails."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        self.away = False

    async def put(self, manifest: WeightManifest) -> Mapping[str, float]:
        if self.away:
            raise DeadlineMissed("no ack from NATS")
        self.sent.add(manifest.digest)
        return {"weights_sent_bytes": float(manifest.bytes)}


@pytest.fixture
def parts(tmp_path: Path) -> Any:
    outlet, weights = RecordingOutlet(), WeightFolder(tmp_path)
    store = CheckedStore(outlet)
    at = Position()
    at.epoch = 1
    at.set_weights(weights.put({"a": torch.ones(8)}, 1, 0, "bfloat16").digest)
    return outlet, store, Announcer(RUN, store, weights, "here:1", outlet), at


async def test_a_policy_is_announced_after_its_weights_are_sent(parts: Any) -> None:
    _, store, announcer, at = parts
    assert await announcer.announce(at, b"", None) == {"weights_sent_bytes": store.puts[0].bytes}
    assert [policy.policy.digest for policy in store.puts] == [at.digest]
    assert store.puts[0].metrics["weights_sent_bytes"] == store.puts[0].bytes


async def test_a_policy_whose_weights_are_not_sent_is_not_announced(parts: Any) -> None:
    outlet, store, announcer, at = parts
    outlet.away = True
    with pytest.raises(DeadlineMissed):
        await announcer.announce(at, b"", None)
    assert store.stored == []
    outlet.away = False
    await announcer.announce(at, b"", None)
    assert [policy.policy.step for policy in store.puts] == [0]


async def test_a_known_policy_is_put_without_sending_its_weights_again(parts: Any) -> None:
    outlet, store, announcer, at = parts
    await announcer.announce(at, b"", None, already_announced=True)
    assert not outlet.sent and not store.puts and len(store.stored) == 1
