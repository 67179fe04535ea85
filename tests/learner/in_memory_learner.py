"""A learner without its process: its loop on a store in memory and on a folder that outlives it."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from banyan.errors import Refused
from banyan.recipe import Recipe
from banyan.segment import Kind, Segment
from banyan.v1 import events_pb2, runstore_service_pb2, tree_pb2
from banyan.wire.segments import segment_to_wire
from services.learner.checkpoints import checkpoint
from services.learner.consumer import ClosedTrees
from services.learner.data.replay import Replayed, ReplayRequest
from services.learner.data.selection import Ready
from services.learner.learner import Learner
from services.learner.ports import StoredBatch
from services.learner.training.checkpointer import Checkpointer
from services.learner.training.trainer_thread import TorchThread
from services.learner.weights.folder import WeightFolder

RUN = "tiny-00000001"


@dataclass
class MemoryStore:
    """An implementation of ports.Store by the rules of docs/protocol.md.

    make: returns the trees of a group, by its ordinal and the digest of the newest policy.
    die_after_commit: ordinal of the batch after whose commit the learner is killed.
    lookahead: groups that are closed before a batch consumes them.
    replay: returns the replayed trees for a request.
    failures: causes, by ordinal of the batch.
    """

    make: Callable[[int, bytes], list[tree_pb2.Tree]]
    epoch: int = 0
    opened: int = 0
    trees_by_id: dict[bytes, tree_pb2.Tree] = field(default_factory=dict)
    groups: dict[int, list[bytes]] = field(default_factory=dict)
    batches: list[tuple[StoredBatch, int]] = field(default_factory=list)
    puts: list[events_pb2.PolicyPublished] = field(default_factory=list)
    stored: list[runstore_service_pb2.StoredPolicy] = field(default_factory=list)
    decoded: int = 0
    die_after_commit: int = -1
    lookahead: int = 2
    replay: Callable[["MemoryStore", ReplayRequest], tuple[Replayed, ...]] = (
        lambda _store, _request: ()
    )
    asked: list[ReplayRequest] = field(default_factory=list)
    failures: dict[int, list[str]] = field(default_factory=dict)

    async def run(self) -> runstore_service_pb2.Run:
        raise AssertionError("the loop does not read the run")

    async def take_epoch(self, learner_id: str, checkpoint_step: int) -> tuple[int, int]:
        self.epoch += 1
        for policy in self.stored:
            policy.abandoned |= policy.published.policy.step > checkpoint_step
        return self.epoch, len(self.batches)

    async def ready(self, limit: int) -> tuple[list[Ready], int | None]:
        used = {g for batch, _ in self.batches for g in batch.group_ids}
        while sum(f"{RUN}/train/{o}" not in used for o in self.groups) < self.lookahead:
            trees = self.make(self.opened, self.puts[-1].policy.digest)
            self.groups[self.opened] = [t.spec.tree_id for t in trees]
            self.trees_by_id |= {t.spec.tree_id: t for t in trees}
            self.opened += 1
        free = [
            (o, ids) for o, ids in sorted(self.groups.items()) if f"{RUN}/train/{o}" not in used
        ]
        return [Ready(f"{RUN}/train/{o}", o, tuple(ids)) for o, ids in free[:limit]], None

    async def trees(self, tree_ids: Sequence[bytes]) -> list[tree_pb2.Tree]:
        return [self.trees_by_id[t] for t in tree_ids]

    async def replays(self, request: ReplayRequest) -> tuple[Replayed, ...]:
        self.asked.append(request)
        return self.replay(self, request)

    async def commit(
        self,
        ordinal: int,
        epoch: int,
        group_ids: Sequence[str],
        summary: Mapping[str, Any],
        replayed: Sequence[Replayed] = (),
    ) -> None:
        if epoch != self.epoch:
            raise Refused(
                f"learner epoch {epoch} is over, {self.epoch} has taken the run", "STALE_EPOCH"
            )
        assert ordinal == len(self.batches)
        ids = [t for g in group_ids for t in self.groups[int(g.rsplit("/", 1)[1])]]
        stored_summary = json.loads(json.dumps(summary))
        batch = StoredBatch(ordinal, tuple(group_ids), tuple(ids), stored_summary, tuple(replayed))
        self.batches.append((batch, epoch))
        if ordinal == self.die_after_commit:
            raise ConnectionAbortedError("killed")

    async def batch(self, ordinal: int) -> StoredBatch | None:
        if ordinal >= len(self.batches):
            return None
        causes = self.failures.get(ordinal, [])
        return replace(self.batches[ordinal][0], set_aside=causes[-1] if len(causes) > 1 else "")

    async def note_failure(self, ordinal: int, epoch: int, cause: str) -> int:
        assert epoch == self.epoch and ordinal < len(self.batches)
        self.failures.setdefault(ordinal, []).append(cause)
        return len(self.failures[ordinal])

    async def engine_loads(self) -> dict[str, tuple[int, int]]:
        self.decoded += 3
        return {"node-1": (self.decoded, 2 * self.decoded)}

    async def policies(self) -> list[runstore_service_pb2.StoredPolicy]:
        return list(self.stored)

    async def put_policy(self, policy: events_pb2.PolicyPublished, replayed: bool = False) -> None:
        if not replayed:
            self.puts.append(policy)
        self.stored.append(runstore_service_pb2.StoredPolicy(published=policy))

    @property
    def live(self) -> list[events_pb2.PolicyPublished]:
        return [p.published for p in self.stored if not p.abandoned]


def grown(
    ordinal: int, policy: bytes, *, spread: bool = True, row: bytes = b"r" * 32
) -> list[tree_pb2.Tree]:
    """Return a tree of four leaves sampled by `policy`, tokens and rewards by the ordinal."""
    rng = np.random.default_rng(ordinal)
    tree_id = bytes([ordinal % 256]) * 32
    root = Segment(tree_id, b"", 0, 0, Kind.PROMPT, rng.integers(0, 40, 5))
    completions = [
        Segment(
            tree_id,
            parent=root.id,
            fork=5,
            ordinal=i,
            kind=Kind.POLICY,
            tokens_T=rng.integers(0, 40, 3),
            logprobs_T=-rng.random(3) * 4,
            policy=policy,
        )
        for i in range(4)
    ]
    spec = tree_pb2.TreeSpec(
        run_id=RUN,
        tree_id=tree_id,
        group_id=f"{RUN}/train/{ordinal}",
        group_ordinal=ordinal,
        row_digest=row,
        purpose=tree_pb2.TREE_PURPOSE_TRAIN,
    )
    tree = tree_pb2.Tree(
        spec=spec,
        state=tree_pb2.TREE_STATE_CLOSED,
        segments=[segment_to_wire(s) for s in (root, *completions)],
    )
    for i, segment in enumerate(completions):
        leaf = tree_pb2.LeafRef(segment=segment.id, end=3)
        value = float(i == ordinal % 4) if spread else 1.0
        score = tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=value)
        tree.leaves.append(leaf)
        tree.scores.append(tree_pb2.ScoredLeaf(leaf=leaf, scorer="s", score=score))
    return [tree]


def recipe(steps: int, **optimise: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "tiny",
            "model": "tiny",
            "task": {"name": "arithmetic"},
            "control": {"groups_per_batch": 2},
            "optimise": {
                "advantage": "methods.advantages.grpo:Grpo",
                "learning_rate": 1e-2,
                "checkpoint_every": 100,
                **optimise,
            },
            "budget": {"steps": steps},
            "resources": {"dtype": "float32"},
            "deterministic": True,
        }
    )


class Rig:
    """The objects of a learner process, on a folder that outlives it."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        store: MemoryStore,
        recipe: Recipe,
        held_out: frozenset[bytes] = frozenset(),
    ) -> None:
        self.folder, self.model = folder, model
        self.store, self.recipe = store, recipe
        self.held_out = held_out
        self.learner: Learner | None = None
        self.weights = WeightFolder(folder / "weights")

    async def run(self, stop: asyncio.Event | None = None) -> None:
        torch_thread = TorchThread(self.recipe, 1)
        try:
            kept = checkpoint.newest(self.folder / "checkpoints", RUN)
            await torch_thread.load(
                kept[0] if kept else self.model, resumed=kept is not None, base=self.model
            )
            checkpointer = Checkpointer(
                self.folder / "checkpoints",
                self.model,
                torch_thread,
                self.recipe.optimise.checkpoint_every,
            )
            self.learner = Learner(
                RUN,
                self.recipe,
                held_out=self.held_out,
                store=self.store,
                trigger=ClosedTrees(),
                torch_thread=torch_thread,
                weights=self.weights,
                checkpointer=checkpointer,
                address="here:1",
                tick_s=0.05,
            )
            await asyncio.wait_for(
                self.learner.work(kept[1] if kept else None, stop or asyncio.Event()), 30
            )
            checkpointer.done()
        finally:
            torch_thread.done()

    def final(self) -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        newest = checkpoint.newest(self.folder / "checkpoints", RUN)
        assert newest is not None
        return load_file(newest[0] / checkpoint.MODEL)


async def straight(tmp_path: Path, model: Path, steps: int = 5, **optimise: Any) -> Rig:
    rig = Rig(tmp_path / "straight", model, MemoryStore(grown), recipe(steps, **optimise))
    await rig.run()
    return rig
