"""The head's trainer: states, weights, loss, calibration, and equal bits after a restart."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from banyan.errors import InvalidInput
from banyan.plugins import Observation
from banyan.recipe import Head as Settings
from banyan.recipe import Optimise
from banyan.recipe_loader.load import resolve
from banyan.signals import Signals
from banyan.v1 import tree_pb2
from services.chassis.weights import file
from services.learner.model.calibration import points
from services.learner.model.load import prepare, states
from services.learner.model.value_head import HeadTrainer
from services.learner.packing import packing, unroll
from services.learner.packing.head_observations import HeadObservations
from services.learner.packing.packing import PackedSequence
from services.learner.training.trainer import Trainer
from tests.learner.in_memory_learner import MemoryStore, Rig, grown, recipe

ASKING = {
    "name": "tests.learner.observing_policy:ObservingPolicy",
    "settings": {"kept": 0.25},
    "max_new_tokens": 64,
}
SETTINGS = Settings(width=8, cold_steps=2, bins=4, window=50, learning_rate=1e-2)


def sequences_of(
    forest: Any, seed: int, budget: int = 400
) -> tuple[list[PackedSequence], list[Any], dict[Any, list[Observation]]]:
    """Return random trees packed, with an observation at every policy token of every leaf."""
    rng, parts, views = np.random.default_rng(seed), [], []
    observed: dict[Any, list[Observation]] = {}
    for _ in range(4):
        view = forest.random(rng, 7, begin=[1, 2, 3])
        views.append(view)
        for index, leaf in enumerate(view.leaves_L):
            tokens = sum(len(view.nodes[i]) for i in view.path(index) if view.nodes[i].trained)
            observed[leaf] = [Observation(leaf, at, 0.5) for at in range(tokens)]
        for run in unroll.divide(view, list(range(len(view.leaves_L))), budget):
            parts.append(
                unroll.unroll(view, run, np.zeros(len(view.leaves_L)), None, b"now", observed)
            )
    return packing.pack(parts, budget), views, observed


@pytest.mark.parametrize("budget", [30, 400])
def test_the_states_are_those_of_a_flat_pass_over_each_path(
    tiny_llama: Callable[..., Any], forest: Any, budget: int
) -> None:
    """A policy token's state is that of the token before it on its path, whatever the packing."""
    sequences, views, _ = sequences_of(forest, 3, budget)
    flat = tiny_llama(0)
    expected = []
    for view in views:
        for index, leaf in enumerate(view.leaves_L):
            if not np.isfinite(view.rewards_L[index]):
                continue
            kinds = np.concatenate(
                [[view.nodes[i].trained] * len(view.nodes[i]) for i in view.path(index)]
            )
            ids = torch.tensor(view.tree.prefix_tokens(leaf.segment, leaf.end), dtype=torch.long)[
                None
            ]
            with torch.no_grad():
                hidden = flat.base_model(input_ids=ids).last_hidden_state[0]
            expected += [hidden[at - 1] for at in np.flatnonzero(kinds)]
    packed = prepare(tiny_llama(0))
    with torch.no_grad():
        found = torch.cat(
            [
                states(packed, sequence)[torch.from_numpy(sequence.head_observations.place_O)]
                for sequence in sequences
            ]
        )
    assert len(found) == len(expected) > 50
    distance = torch.cdist(
        torch.stack(expected), found, compute_mode="donot_use_mm_for_euclid_dist"
    )
    assert float(distance.min(1).values.max()) < 1e-9 and float(distance.min(0).values.max()) < 1e-9
    assert (len(sequences) > 1) is (budget == 30)


def test_labels_are_rewards_and_scores_are_only_those_of_the_weights_in_training(
    forest: Any,
) -> None:
    view = forest.flat([1.0, 0.0, 3.0, None])
    tree = type(view.tree)(view.tree.tree_id, [view.tree.root])
    leaves = []
    for i, leaf in enumerate(view.leaves_L):
        old = view.tree.segments[leaf.segment]
        signals = Signals(head_T=np.array([0.25, 0.75]))
        segment = forest.segment(
            tree, tree.root, old.tokens_T, ordinal=i, policy=b"now" if i else b"old"
        )
        leaves.append(type(leaf)(segment.id, 2))
        object.__setattr__(segment, "signals", signals)
    relabelled = type(view)(tree, leaves, dict(zip(leaves, [1.0, 0.0, 3.0, None], strict=True)))
    observed = {leaf: [Observation(leaf, 1, 0.5)] for leaf in leaves}
    part = unroll.unroll(relabelled, range(4), np.zeros(4), None, b"now", observed)
    observations = packing.pack([part], 99)[0].head_observations
    assert observations.label_O.tolist() == [1.0, 0.0, 1.0], (
        "a reward beyond 0..1 counts as 1, a missing one not at all"
    )
    assert observations.kept_O.tolist() == [0.5] * 3
    assert np.isnan(observations.recorded_O[0]) and observations.recorded_O[1:].tolist() == [
        0.75,
        0.75,
    ]


@pytest.mark.parametrize(
    ("at", "kept", "message"), [(2, 0.5, "path that has 2"), (0, 0.0, "kept with a probability")]
)
def test_impossible_observations_are_refused(
    forest: Any, at: int, kept: float, message: str
) -> None:
    view = forest.flat([1.0, 0.0])
    observed = {leaf: [Observation(leaf, at, kept)] for leaf in view.leaves_L}
    with pytest.raises(InvalidInput, match=message):
        unroll.unroll(view, range(2), np.zeros(2), None, b"now", observed)


def test_the_step_is_that_of_the_weighted_loss() -> None:
    """Three observations with s = 1, 1/2 and 1/4 weigh 1, 2 and 4."""
    one, two = (HeadTrainer(6, SETTINGS, 7, torch.device("cpu")) for _ in range(2))
    h = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    label, kept = np.array([1.0, 0.0, 1.0]), np.array([1.0, 0.5, 0.25])
    one.observe(h, HeadObservations(np.arange(3), label, kept, np.full(3, np.nan)))
    reported = one.step()
    p = two.head.logits(h).sigmoid()
    each = -(torch.tensor(label) * p.log() + (1 - torch.tensor(label)) * (1 - p).log())
    loss = (each * torch.tensor([1.0, 2.0, 4.0])).sum() / 7.0
    optimizer = torch.optim.Adam(two.head.parameters(), lr=1e-2)
    loss.backward()
    optimizer.step()
    assert reported["head_loss"] == pytest.approx(float(loss.detach()), abs=1e-6)
    assert reported["head_brier"] == pytest.approx(
        float((p.detach() - torch.tensor(label)).square().mean()), abs=1e-6
    )
    assert (reported["head_observations"], reported["head_positives"]) == (
        3.0,
        pytest.approx(2 / 3),
    )
    gaps = [
        float((a - b).detach().abs().max())
        for a, b in zip(one.head.parameters(), two.head.parameters(), strict=True)
    ]
    assert max(gaps) < 1e-6
    assert "head_mismatch" not in reported and HeadTrainer(
        6, SETTINGS, 8, torch.device("cpu")
    ).step() == {"head_observations": 0.0}


def test_equal_mass_bins() -> None:
    """Eight numbers in four bins of two; in the third a right one weighs 3 times a wrong one."""
    raw = [0.8, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    right = [1, 0, 0, 1, 0, 1, 0, 1]
    weight = [1, 1, 1, 1, 1, 3, 1, 1]
    raw_B, right_B = points(raw, right, weight, 4)
    assert np.allclose(raw_B, [0.15, 0.35, 0.55, 0.75]) and np.allclose(
        right_B, [0.0, 0.5, 0.75, 1.0]
    )
    assert points(raw[:3], right[:3], weight[:3], 4)[1].tolist() == [0.0, 1 / 3, 2 / 3, 1.0], (
        "too few: p = q"
    )
    assert points([0.5] * 8, right, [1] * 8, 4)[1].tolist() == [0.5] * 4, (
        "a head that says one thing is right on average"
    )


def test_calibration_brings_the_score_to_the_frequency() -> None:
    """An overconfident head says .95 or .05 where .7 and .3 are right."""
    rng = np.random.default_rng(0)
    sure = rng.random(4000) < 0.5
    raw = np.where(sure, 0.95, 0.05) + rng.normal(0, 0.01, 4000)
    right = rng.random(4000) < np.where(sure, 0.7, 0.3)
    raw_B, right_B = points(raw, right, np.ones(4000), 10)
    p = np.interp(raw, raw_B, right_B)
    assert abs(p[sure].mean() - 0.7) < 0.03 and abs(p[~sure].mean() - 0.3) < 0.03
    assert ((p - right) ** 2).mean() < ((raw - right) ** 2).mean() - 0.03


def test_a_head_learns_what_its_states_show_and_is_heard_when_it_is_warm() -> None:
    trainer, briers, heard = HeadTrainer(6, SETTINGS, 7, torch.device("cpu")), [], []
    rng = np.random.default_rng(0)
    for _ in range(200):
        h = torch.from_numpy(rng.standard_normal((16, 6))).float()
        label = (h[:, 2] > 0).double().numpy()
        trainer.observe(h, HeadObservations(np.arange(16), label, np.ones(16), np.full(16, np.nan)))
        briers.append(trainer.step()["head_brier"])
        heard.append(bool(trainer.published()[file.HEAD + "heard"]))
    assert heard[:3] == [False, True, True]
    assert np.mean(briers[-20:]) < 0.13 < 0.2 < np.mean(briers[:5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_head_changes_no_bit_of_the_model(
    tiny_llama: Callable[..., Any], forest: Any, dtype: torch.dtype
) -> None:
    found = []
    for settings in (None, SETTINGS):
        trainer = Trainer(
            prepare(tiny_llama(0, torch.float32)),
            Optimise(learning_rate=1e-2, head=settings),
            dtype,
        )
        for seed in range(3):
            report = trainer.step(sequences_of(forest, seed)[0], seed)
            assert bool(report.head) is bool(settings)
        found.append(trainer)
    bare, taught = found[0].masters.exact(), found[1].masters.exact()
    assert all(torch.equal(bare[n], taught[n]) for n in bare)
    names = {n for n in found[1].published() if n.startswith(file.HEAD)}
    assert len(names) == 9 and not names & set(found[0].published())


def asked(ordinal: int, policy: bytes) -> list[tree_pb2.Tree]:
    """Return trees of a policy that observes a head."""
    trees = grown(ordinal, policy)
    for tree in trees:
        tree.spec.generate_json = json.dumps(ASKING)
    return trees


HEAD = {"width": 8, "cold_steps": 2, "bins": 4, "window": 20}


async def test_a_head_that_dies_goes_on_bit_for_bit(tmp_path: Path, tiny_folder: Path) -> None:
    straight = Rig(tmp_path / "straight", tiny_folder, MemoryStore(asked), recipe(5, head=HEAD))
    await straight.run()
    plain = Rig(tmp_path / "plain", tiny_folder, MemoryStore(asked), recipe(5))
    await plain.run()
    for every, dies_at in ((100, 2), (2, 3), (1, 4)):
        store = MemoryStore(asked, die_after_commit=dies_at)
        folder = tmp_path / f"killed-{every}"
        with pytest.raises(ConnectionAbortedError):
            await Rig(
                folder, tiny_folder, store, recipe(5, head=HEAD, checkpoint_every=every)
            ).run()
        store.die_after_commit = -1
        restarted = Rig(folder, tiny_folder, store, recipe(5, head=HEAD, checkpoint_every=every))
        await restarted.run()
        assert store.puts[-1].policy.digest == straight.store.puts[-1].policy.digest
    assert plain.store.puts[-1].policy.digest != straight.store.puts[-1].policy.digest
    one, two = plain.final(), straight.final()
    assert one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one), (
        "a folder that transformers loads"
    )
    metrics = dict(straight.store.puts[-1].metrics)
    assert metrics["head_observations"] == 8.0 and metrics["head_positives"] == 0.25
    assert "head_loss" in metrics and "head_loss" not in dict(plain.store.puts[-1].metrics)


def test_a_recipe_says_whether_there_is_a_head() -> None:
    data = recipe(1).model_dump()
    data["generate"]["policy"] = "tests.learner.observing_policy:ObservingPolicy"
    with pytest.raises(
        InvalidInput, match=r"needs the score of a learned head; train one with `optimise\.head"
    ):
        resolve(data)
    resolve({**data, "resources": {"engine": "scripted"}})
    resolve({**data, "optimise": {**data["optimise"], "head": {}}})
    with pytest.raises(InvalidInput, match="which engine vllm does not provide"):
        resolve(
            {
                **data,
                "deterministic": False,
                "resources": {"engine": "vllm"},
                "optimise": {"head": {}},
            }
        )
    data["generate"]["policy"] = "iid"
    with pytest.raises(InvalidInput, match="does not use a learned head"):
        resolve({**data, "optimise": {**data["optimise"], "head": {}}})
