"""A policy is announced when its weights can be had, and not before."""

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
from services.learner.weights.object_store import FolderOnly
from tests.learner.in_memory_learner import RUN, MemoryStore, grown


class Asked(MemoryStore):
    """Looks, when a policy is told, at what a node that heard of it would find."""

    def __init__(self, outlet: "Out") -> None:
        super().__init__(grown)
        self.outlet = outlet

    async def put_policy(self, policy: events_pb2.PolicyPublished, replayed: bool = False) -> None:
        step = policy.policy.step
        file.open_verified(Path(policy.path) / f"policy-{policy.policy.learner_epoch}-{step}.json")
        assert replayed or policy.policy.digest in self.outlet.out, f"policy {step} is told of, and its weights are not out"
        await super().put_policy(policy, replayed)


class Out(FolderOnly):
    """Somewhere beside the folder; `away` takes nothing."""

    def __init__(self) -> None:
        self.out: set[bytes] = set()
        self.away = False

    async def put(self, manifest: WeightManifest) -> Mapping[str, float]:
        if self.away:
            raise DeadlineMissed("no ack from NATS")
        self.out.add(manifest.digest)
        return {"weights_sent_bytes": float(manifest.bytes)}


@pytest.fixture
def told(tmp_path: Path) -> Any:
    outlet, weights = Out(), WeightFolder(tmp_path)
    store = Asked(outlet)
    at = Position()
    at.epoch = 1
    at.hold(weights.put({"a": torch.ones(8)}, 1, 0, "bfloat16").digest)
    return outlet, store, Announcer(RUN, store, weights, "here:1", outlet), at


async def test_nobody_is_told_of_a_policy_before_its_weights_are_out(told: Any) -> None:
    _, store, announcer, at = told
    assert await announcer.announce(at, b"", None) == {"weights_sent_bytes": store.puts[0].bytes}
    assert [policy.policy.digest for policy in store.puts] == [at.digest]
    assert store.puts[0].metrics["weights_sent_bytes"] == store.puts[0].bytes


async def test_a_policy_whose_weights_do_not_go_out_is_told_to_nobody(told: Any) -> None:
    outlet, store, announcer, at = told
    outlet.away = True
    with pytest.raises(DeadlineMissed):
        await announcer.announce(at, b"", None)
    assert store.stored == []
    outlet.away = False
    await announcer.announce(at, b"", None)
    assert [policy.policy.step for policy in store.puts] == [0]


async def test_a_policy_that_all_know_is_put_without_its_weights_going_out_again(told: Any) -> None:
    outlet, store, announcer, at = told
    await announcer.announce(at, b"", None, replayed=True)
    assert not outlet.out and not store.puts and len(store.stored) == 1
