"""The loop against a store in memory: batches in order, replay after a death, fencing, held-out rows, weights kept."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from banyan.errors import NotFound, Refused
from banyan.recipe import Recipe
from banyan.segment import Kind, Segment
from banyan.v1 import events_pb2, runstore_service_pb2, tree_pb2
from banyan.wire import segment_to_wire
from services.chassis import weightfile
from services.learner import checkpoint
from services.learner.batch import Ready
from services.learner.bench import Bench
from services.learner.consumer import ClosedTrees
from services.learner.keeper import Keeper
from services.learner.learner import Learner
from services.learner.ports import StoredBatch
from services.learner.weights import WeightFolder

RUN = "tiny-00000001"


@dataclass
class MemoryStore:
    """Implements ports.Store under the rules of PROTOCOL 5."""

    make: Callable[[int, bytes], list[tree_pb2.Tree]]  # group ordinal, newest policy digest → its trees
    epoch: int = 0
    opened: int = 0
    trees_by_id: dict[bytes, tree_pb2.Tree] = field(default_factory=dict)
    groups: dict[int, list[bytes]] = field(default_factory=dict)
    batches: list[tuple[StoredBatch, int]] = field(default_factory=list)
    puts: list[events_pb2.PolicyPublished] = field(default_factory=list)
    stored: list[runstore_service_pb2.StoredPolicy] = field(default_factory=list)
    die_after_commit: int = -1
    lookahead: int = 2

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
        free = [(o, ids) for o, ids in sorted(self.groups.items()) if f"{RUN}/train/{o}" not in used]
        return [Ready(f"{RUN}/train/{o}", o, tuple(ids)) for o, ids in free[:limit]], None

    async def trees(self, tree_ids: Sequence[bytes]) -> list[tree_pb2.Tree]:
        return [self.trees_by_id[t] for t in tree_ids]

    async def commit(self, ordinal: int, epoch: int, group_ids: Sequence[str], summary: Mapping[str, Any]) -> None:
        if epoch != self.epoch:
            raise Refused(f"learner epoch {epoch} is over, {self.epoch} has taken the run", "STALE_EPOCH")
        assert ordinal == len(self.batches)
        ids = [t for g in group_ids for t in self.groups[int(g.rsplit("/", 1)[1])]]
        said = json.loads(json.dumps(summary))
        self.batches.append((StoredBatch(ordinal, tuple(group_ids), tuple(ids), said), epoch))
        if ordinal == self.die_after_commit:
            raise ConnectionAbortedError("killed")

    async def batch(self, ordinal: int) -> StoredBatch | None:
        return self.batches[ordinal][0] if ordinal < len(self.batches) else None

    async def policies(self) -> list[runstore_service_pb2.StoredPolicy]:
        return list(self.stored)

    async def put_policy(self, policy: events_pb2.PolicyPublished, replayed: bool = False) -> None:
        if not replayed:
            self.puts.append(policy)
        self.stored.append(runstore_service_pb2.StoredPolicy(published=policy))

    @property
    def live(self) -> list[events_pb2.PolicyPublished]:
        return [p.published for p in self.stored if not p.abandoned]


def grown(ordinal: int, policy: bytes, *, spread: bool = True, row: bytes = b"r" * 32) -> list[tree_pb2.Tree]:
    """One tree of four leaves, its tokens and rewards drawn from the ordinal; sampled by `policy`."""
    rng = np.random.default_rng(ordinal)
    tree_id = bytes([ordinal % 256]) * 32
    root = Segment(tree_id, b"", 0, 0, Kind.PROMPT, rng.integers(0, 40, 5))
    made = [
        Segment(tree_id, root.id, 5, i, Kind.POLICY, rng.integers(0, 40, 3), -rng.random(3) * 4, policy=policy)
        for i in range(4)
    ]
    spec = tree_pb2.TreeSpec(run_id=RUN, tree_id=tree_id, group_id=f"{RUN}/train/{ordinal}", row_digest=row)
    spec.purpose, spec.group_ordinal = tree_pb2.TREE_PURPOSE_TRAIN, ordinal
    tree = tree_pb2.Tree(spec=spec, state=tree_pb2.TREE_STATE_CLOSED, segments=[segment_to_wire(s) for s in (root, *made)])
    for i, segment in enumerate(made):
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
                "advantage": "services.learner.advantages.grpo:Grpo",
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
    """A learner process's worth of objects on a folder that outlives it."""

    def __init__(
        self, folder: Path, model: Path, store: MemoryStore, recipe: Recipe, held_out: frozenset[bytes] = frozenset()
    ) -> None:
        self.folder, self.model, self.store, self.recipe, self.held_out = folder, model, store, recipe, held_out
        self.learner: Learner | None = None
        self.weights = WeightFolder(folder / "weights")

    async def run(self, stop: asyncio.Event | None = None) -> None:
        bench = Bench(self.recipe, 1)
        try:
            kept = checkpoint.newest(self.folder / "checkpoints", RUN)
            await bench.load(kept[0] if kept else self.model, resumed=kept is not None)
            keeper = Keeper(self.folder / "checkpoints", self.model, bench, self.recipe.optimise.checkpoint_every)
            parts = (self.store, ClosedTrees(), bench, self.weights, keeper, "here:1", 0.05)
            self.learner = Learner(RUN, self.recipe, self.held_out, *parts)
            await asyncio.wait_for(self.learner.work(kept[1] if kept else None, stop or asyncio.Event()), 30)
            keeper.done()
        finally:
            bench.done()

    def final(self) -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        found = checkpoint.newest(self.folder / "checkpoints", RUN)
        assert found is not None
        return load_file(found[0] / checkpoint.MODEL)


async def straight(tmp_path: Path, model: Path, steps: int = 5, **optimise: Any) -> Rig:
    rig = Rig(tmp_path / "straight", model, MemoryStore(grown), recipe(steps, **optimise))
    await rig.run()
    return rig


async def test_every_batch_makes_one_policy_in_order(tmp_path: Path, tiny_folder: Path) -> None:
    rig = await straight(tmp_path, tiny_folder)
    store = rig.store
    assert [b.group_ids for b, _ in store.batches] == [
        (f"{RUN}/train/{2 * i}", f"{RUN}/train/{2 * i + 1}") for i in range(5)
    ]
    assert [p.policy.step for p in store.puts] == [0, 1, 2, 3, 4, 5]
    assert [p.batch_ordinal for p in store.puts[1:]] == [0, 1, 2, 3, 4]
    assert not store.puts[0].HasField("batch_ordinal")
    assert [p.parent_digest for p in store.puts[1:]] == [p.policy.digest for p in store.puts[:-1]]
    metrics = store.puts[3].metrics
    assert metrics["reward"] == 0.25
    assert (metrics["groups"], metrics["groups_skipped"], metrics["applied"]) == (2, 0, 1)
    assert (metrics["unique_tokens"], metrics["path_tokens"]) == (2 * 17, 2 * 32)
    assert metrics["foreign_fraction"] == 0
    assert metrics["grad_norm"] > 0
    said = store.batches[0][0].summary
    assert [g["advantage_max"] for g in said["groups"]] == pytest.approx([1.5, 1.5], abs=1e-4)


async def test_the_weights_handed_out_are_the_policys_and_old_ones_go(tmp_path: Path, tiny_folder: Path) -> None:
    rig = await straight(tmp_path, tiny_folder)
    last = rig.store.puts[-1]
    names = sorted(p.name for p in Path(last.path).iterdir())
    assert names == sorted(f"policy-1-{s}.{kind}" for s in (3, 4, 5) for kind in ("bin", "json"))
    manifest = weightfile.open_verified(Path(last.path) / "policy-1-5.json")
    assert (manifest.digest, manifest.bytes) == (last.policy.digest, last.bytes)
    read = weightfile.read_tensors(manifest)
    assert torch.equal(read["model.embed_tokens.weight"], rig.final()["model.embed_tokens.weight"])
    assert torch.equal(read["lm_head.weight"], read["model.embed_tokens.weight"])
    with pytest.raises(NotFound, match="fetch the newest"):
        rig.weights.find(rig.store.puts[1].policy.digest)


@pytest.mark.parametrize("every", [100, 1, 2])
@pytest.mark.parametrize("dies_at", [0, 2, 4])
async def test_a_learner_that_dies_between_commit_and_training_ends_with_the_same_bits(
    tmp_path: Path, tiny_folder: Path, every: int, dies_at: int
) -> None:
    expected = await straight(tmp_path, tiny_folder)
    store = MemoryStore(grown, die_after_commit=dies_at)
    folder = tmp_path / "killed"
    with pytest.raises(ConnectionAbortedError):
        await Rig(folder, tiny_folder, store, recipe(5, checkpoint_every=every)).run()
    before = len(store.puts)
    assert len(store.batches) == dies_at + 1
    store.die_after_commit = -1
    again = Rig(folder, tiny_folder, store, recipe(5, checkpoint_every=every))
    await again.run()
    assert [b.ordinal for b, _ in store.batches] == [0, 1, 2, 3, 4]
    assert [e for _, e in store.batches] == [1] * (dies_at + 1) + [2] * (4 - dies_at)
    assert [p.policy.step for p in store.puts[before:]] == list(range(dies_at + 1, 6))  # no known policy is announced again
    path = [(p.policy.step, p.batch_ordinal) for p in store.live if p.policy.step]
    assert path == [(o + 1, o) for o in range(5)]  # yet each one is on the path: base model to final policy, no hole
    assert store.puts[-1].policy.digest == expected.store.puts[-1].policy.digest
    assert [b.summary for b, _ in store.batches] == [b.summary for b, _ in expected.store.batches]
    one, two = expected.final(), again.final()
    assert all(torch.equal(one[n], two[n]) for n in one)


async def test_a_policy_is_announced_again_if_the_replay_makes_other_weights(tmp_path: Path, tiny_folder: Path) -> None:
    store = MemoryStore(grown, die_after_commit=3)
    with pytest.raises(ConnectionAbortedError):
        await Rig(tmp_path / "a", tiny_folder, store, recipe(5)).run()
    store.die_after_commit = -1
    before = len(store.puts)
    other = recipe(5, learning_rate=2e-2)  # as another machine might round differently
    await Rig(tmp_path / "a", tiny_folder, store, other).run()
    assert [(p.policy.learner_epoch, p.policy.step) for p in store.puts[before:]] == [(2, s) for s in range(1, 6)]
    chain, by_digest = [], {p.policy.digest: p for p in store.live}
    at = store.live[-1]
    while at.parent_digest:
        chain.append(at.batch_ordinal)
        at = by_digest[at.parent_digest]
    assert chain == [4, 3, 2, 1, 0]


async def test_a_group_that_teaches_nothing_is_consumed_and_the_number_moves(tmp_path: Path, tiny_folder: Path) -> None:
    def flat_first(ordinal: int, policy: bytes) -> list[tree_pb2.Tree]:
        return grown(ordinal, policy, spread=ordinal not in (0, 1, 2))

    rig = Rig(tmp_path, tiny_folder, MemoryStore(flat_first), recipe(3))
    await rig.run()
    puts = rig.store.puts
    assert [p.policy.step for p in puts] == [0, 1, 2, 3]
    assert puts[1].policy.digest == puts[0].policy.digest  # both groups flat: no optimizer step
    assert (puts[1].metrics["applied"], puts[1].metrics["groups_skipped"]) == (0, 2)
    assert puts[2].policy.digest != puts[1].policy.digest
    assert puts[2].metrics["groups_skipped"] == 1
    assert weightfile.open_verified(Path(puts[1].path) / "policy-1-1.json").step == 1
    assert rig.store.batches[0][0].summary["groups"][0]["skip"] == "zero variance"


async def test_an_older_learner_is_refused_and_stops(tmp_path: Path, tiny_folder: Path) -> None:
    store = MemoryStore(grown)
    rig = Rig(tmp_path, tiny_folder, store, recipe(5))
    plain = store.ready

    async def taken_over(limit: int) -> tuple[list[Ready], int | None]:
        if len(store.batches) == 2:
            await store.take_epoch("another", 0)
        return await plain(limit)

    store.ready = taken_over  # type: ignore[method-assign]
    with pytest.raises(Refused, match="epoch 1 is over") as caught:
        await rig.run()
    assert caught.value.reason == "STALE_EPOCH"
    assert len(store.batches) == 2


async def test_a_held_out_row_is_refused_loudly(tmp_path: Path, tiny_folder: Path) -> None:
    def leaks(ordinal: int, policy: bytes) -> list[tree_pb2.Tree]:
        return grown(ordinal, policy, row=b"h" * 32 if ordinal == 3 else b"r" * 32)

    store = MemoryStore(leaks)
    with pytest.raises(Refused, match="held-out") as caught:
        await Rig(tmp_path, tiny_folder, store, recipe(5), frozenset([b"h" * 32])).run()
    assert caught.value.reason == "HELD_OUT"
    assert len(store.batches) == 1  # the batch that held it was never committed


async def test_an_evaluation_tree_is_refused(tmp_path: Path, tiny_folder: Path) -> None:
    def measures(ordinal: int, policy: bytes) -> list[tree_pb2.Tree]:
        trees = grown(ordinal, policy)
        trees[0].spec.purpose = tree_pb2.TREE_PURPOSE_EVAL
        return trees

    with pytest.raises(Refused, match="to measure"):
        await Rig(tmp_path, tiny_folder, MemoryStore(measures), recipe(5)).run()


async def test_too_old_leaves_are_left_out_and_a_replay_leaves_out_the_same(tmp_path: Path, tiny_folder: Path) -> None:
    def from_the_base(ordinal: int, policy: bytes) -> list[tree_pb2.Tree]:
        trees = grown(ordinal, policy)
        if ordinal == 4:  # sampled by the base model, consumed by step 2
            return grown(ordinal, store.puts[0].policy.digest)
        return trees

    store = MemoryStore(from_the_base, die_after_commit=3)
    with pytest.raises(ConnectionAbortedError):
        await Rig(tmp_path, tiny_folder, store, recipe(5)).run()
    said = store.batches[2][0].summary
    assert said["metrics"]["stale_leaves"] == 4
    assert "0 scored leaves" in said["groups"][0]["skip"]
    known = store.puts[-1].policy.digest
    store.die_after_commit = -1
    await Rig(tmp_path, tiny_folder, store, recipe(5)).run()
    assert known in {p.policy.digest for p in store.puts}
    replayed = [p for p in store.puts if p.policy.learner_epoch == 2]
    assert [p.policy.step for p in replayed] == [4, 5]  # steps 1 to 3 came out as before


async def test_an_interrupted_learner_leaves_a_checkpoint_and_the_next_goes_on(tmp_path: Path, tiny_folder: Path) -> None:
    expected = await straight(tmp_path, tiny_folder)
    store = MemoryStore(grown)
    stop = asyncio.Event()
    plain = store.put_policy

    async def interrupt(policy: events_pb2.PolicyPublished, replayed: bool = False) -> None:
        await plain(policy, replayed)
        if policy.policy.step == 2:
            stop.set()

    store.put_policy = interrupt  # type: ignore[method-assign]
    first = Rig(tmp_path / "two", tiny_folder, store, recipe(5))
    await first.run(stop)
    found = checkpoint.newest(tmp_path / "two" / "checkpoints", RUN)
    assert found is not None and (found[1].step, found[1].next_ordinal) == (2, 2)
    store.put_policy = plain  # type: ignore[method-assign]
    second = Rig(tmp_path / "two", tiny_folder, store, recipe(5))
    await second.run()
    assert [p.policy.step for p in store.puts] == [0, 1, 2, 2, 3, 4, 5]
    again = store.puts[3]
    assert (again.policy.learner_epoch, again.batch_ordinal, again.parent_digest) == (2, 1, store.puts[2].parent_digest)
    one, two = expected.final(), second.final()
    assert all(torch.equal(one[n], two[n]) for n in one)


async def test_an_interrupt_in_the_middle_of_a_replay_keeps_what_was_replayed(tmp_path: Path, tiny_folder: Path) -> None:
    store = MemoryStore(grown, die_after_commit=3)
    with pytest.raises(ConnectionAbortedError):
        await Rig(tmp_path, tiny_folder, store, recipe(5)).run()
    store.die_after_commit = -1
    stop, plain = asyncio.Event(), store.batch

    async def interrupt(ordinal: int) -> StoredBatch | None:
        if ordinal == 1:
            stop.set()
        return await plain(ordinal)

    store.batch = interrupt  # type: ignore[method-assign]
    await Rig(tmp_path, tiny_folder, store, recipe(5)).run(stop)
    found = checkpoint.newest(tmp_path / "checkpoints", RUN)
    assert found is not None and (found[1].step, found[1].next_ordinal) == (2, 2)
    store.batch = plain  # type: ignore[method-assign]
    last = Rig(tmp_path, tiny_folder, store, recipe(5))
    await last.run()
    expected = await straight(tmp_path, tiny_folder)
    one, two = expected.final(), last.final()
    assert all(torch.equal(one[n], two[n]) for n in one)
