"""The reference policy: required where a loss needs it; its KL is subtracted from rewards."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from banyan.credit.estimate import ScoredTree
from banyan.errors import NotReady
from banyan.recipe import Optimise
from services.learner import losses
from services.learner.losses.kl import Kl
from services.learner.model.load import prepare
from services.learner.packing import pairs
from services.learner.packing.loss_targets import LossTargets
from services.learner.training import reference
from services.learner.training.trainer import Trainer
from services.learner.training.trainer_thread import TorchThread
from tests.learner.flat_reference import gathered, sequences
from tests.learner.in_memory_learner import Rig, recipe, straight


@pytest.mark.parametrize(
    ("name", "settings"),
    [("dpo", {}), ("gspo", {"kl": {"where": "reward"}}), ("cispo", {"kl": {}})],
)
def test_a_loss_that_needs_a_reference_is_refused_without_one(
    tiny_llama: Callable[..., Any], name: str, settings: dict[str, Any]
) -> None:
    with pytest.raises(NotReady, match=f"loss '{name}' needs the log-probs of a reference policy"):
        Trainer(prepare(tiny_llama(0)), Optimise(loss=name, loss_settings=settings))


def test_kl_is_taken_from_rewards_by_leaf(tiny_llama: Callable[..., Any], forest: Any) -> None:
    """Against each path by itself: coef · Σ (logμ − logπ_ref); masked leaves stay masked."""
    view = forest.random(np.random.default_rng(4), 8)
    rewards = {
        leaf: None if np.isnan(reward) else reward
        for leaf, reward in zip(view.leaves_L, view.rewards_L.tolist(), strict=True)
    }
    tree = ScoredTree(view.tree, view.leaves_L, rewards)
    leaf_L = np.where(np.isfinite(view.rewards_L), 0.0, np.nan)
    model = tiny_llama(1)
    model.set_attn_implementation("sdpa")
    expected = {}
    for leaf, sequence in zip(
        np.flatnonzero(np.isfinite(leaf_L)), sequences([view], [leaf_L]), strict=True
    ):
        tokens = gathered(model, sequence)
        each = (
            0.0
            if tokens is None
            else float((tokens.behaviour_P_T - tokens.logp_P_T).sum().detach())
        )
        expected[view.leaves_L[leaf]] = view.rewards_L[leaf] - 0.05 * each
    got = reference.penalised(
        tree, prepare(model), Kl(coef=0.05, estimator="k1", where="reward"), 30
    )
    assert {leaf: r for leaf, r in got.rewards.items() if r is not None} == pytest.approx(
        expected, abs=1e-5
    )
    assert sum(r is None for r in got.rewards.values()) == int(np.isnan(view.rewards_L).sum())


async def test_the_reference_is_the_runs_base_model_and_never_moves(tiny_folder: Path) -> None:
    thread = TorchThread(recipe(1, loss="ppo-clip", loss_settings={"kl": {"coef": 0.1}}), 1)
    try:
        await thread.load(tiny_folder, resumed=False, base=tiny_folder)
        frozen = thread.trainer.reference
        assert frozen is not None
        pairs_ = zip(frozen.parameters(), thread.trainer.model.parameters(), strict=True)
        assert all(torch.equal(a, b) and a.data_ptr() != b.data_ptr() for a, b in pairs_)
        assert not any(p.requires_grad for p in frozen.parameters())
    finally:
        thread.done()


async def test_no_reference_is_loaded_where_none_is_needed(tiny_folder: Path) -> None:
    thread = TorchThread(recipe(1), 1)
    try:
        await thread.load(tiny_folder, resumed=False, base=tiny_folder)
        assert thread.trainer.reference is None
    finally:
        thread.done()


def test_pairs_are_siblings_the_better_one_first(forest: Any) -> None:
    """Leaves 1, 0 and 0, 0 under two nodes: the nodes are a pair, and so are the first leaves."""
    view = forest.two_level([1, 0, 0, 0])
    leaf_L = np.array([1.5, -0.5, -0.5, -0.5])
    names = {(n.segment.tokens_T.tolist()[0], n.parent): n.index for n in view.nodes}
    chosen = pairs.pairs(view, leaf_L, None, LossTargets(pairs="best", margin=1e-6))
    nodes = [n.index for n in view.nodes if n.depth == 1]
    leaves = [view.leaf_node_L[i] for i in range(4)]
    assert chosen == [(nodes[0], nodes[1]), (leaves[0], leaves[1])], names
    row = losses.build("dpo", {}).targets
    piece = next(pairs.parts(view, leaf_L, None, policy=b"now", budget=99, targets=row))
    assert [p.token_T.tolist() for p in piece.paths] == [[4, 6], [5, 6], [8], [9]]
    assert [p.advantage_T[0] for p in piece.paths] == [1, -1, 1, -1]
    masked = pairs.pairs(view, np.array([np.nan, -0.5, -0.5, -0.5]), None, row)
    assert masked == []


def test_three_siblings_make_two_pairs_or_three(forest: Any) -> None:
    view, leaf_L = forest.flat([2, 1, 0]), np.array([1.0, 0.0, -1.0])
    assert len(pairs.pairs(view, leaf_L, None, LossTargets(pairs="best", margin=1e-6))) == 2
    assert len(pairs.pairs(view, leaf_L, None, LossTargets(pairs="all", margin=1e-6))) == 3
    assert len(pairs.pairs(view, leaf_L, None, LossTargets(pairs="all", margin=1.5))) == 1
    assert pairs.pairs(view, np.zeros(3), None, LossTargets(pairs="all", margin=1e-6)) == []


@pytest.mark.parametrize(
    ("loss", "settings", "says"),
    [
        ("dpo", {}, ("pairs_right", "pairs_margin")),
        (
            "gspo",
            {"kl": {"coef": 0.01, "estimator": "k1", "where": "reward"}},
            ("clip_fraction", "ess", "ratio_0.8_1.25"),
        ),
        (
            "decoupled",
            {"kl": {"coef": 0.01}},
            ("truncated_share", "importance_mean", "reference_kl", "path_ess"),
        ),
    ],
)
async def test_a_run_with_a_reference_goes_on_as_if_it_had_never_stopped(
    tmp_path: Path, tiny_folder: Path, loss: str, settings: dict[str, Any], says: tuple[str, ...]
) -> None:
    """The reference stays the base model: two steps and two resumed ones equal four."""
    optimise = {"loss": loss, "loss_settings": settings}
    whole = await straight(tmp_path, tiny_folder, 4, **optimise)
    metrics = whole.store.puts[-1].metrics
    assert metrics["applied"] == 1
    assert all(np.isfinite(metrics[name]) for name in says)
    halved = Rig(
        tmp_path / "halved", tiny_folder, type(whole.store)(whole.store.make), recipe(2, **optimise)
    )
    await halved.run()
    resumed = Rig(halved.folder, tiny_folder, halved.store, recipe(4, **optimise))
    await resumed.run()
    one, two = whole.final(), resumed.final()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert metrics["reward"] == 0.25, "as it was scored, also where a KL is taken off"
    taken_off = settings.get("kl", {}).get("where") == "reward"
    if loss != "dpo":
        same = metrics["advantage_max"] == pytest.approx(1.499997, abs=1e-6)  # of 1, 0, 0, 0
        assert same != taken_off
