"""64 random trees of paths that act: packed as flat, and answers are context alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from banyan.credit.estimate import Credit
from banyan.plugins import GroupTrees
from banyan.segment import Kind
from banyan.view import TreeView
from methods.advantages.grpo import Grpo
from services.learner import losses
from services.learner.attention import mask
from services.learner.attention.cost_model import AttentionMethod
from services.learner.data import metrics
from services.learner.packing import packing, unroll
from services.learner.packing.packing import PackedSequence
from services.learner.training.step_sums import mismatch
from tests.learner import flat_reference as flat
from tests.learner.mixed_batches import exact
from tests.learner.tool_trees import GIVEN, random_tree

TREES, BATCHES = 4, 16
REGULARISED = {"kl": {"coef": 0.1}, "entropy": 0.01}
METHODS = [method for method in AttentionMethod if method is not AttentionMethod.BLOCK_MASK]


def batch(seed: int) -> tuple[list[TreeView], list[np.ndarray]]:
    """Return trees with an advantage for each leaf that has a reward."""
    rng = np.random.default_rng(seed)
    views = [random_tree(rng) for _ in range(TREES)]
    return views, [
        np.where(np.isfinite(v.rewards_L), rng.standard_normal(len(v.rewards_L)), np.nan)
        for v in views
    ]


def sequences(
    views: list[TreeView], advantages: list[np.ndarray], budget: int = 60
) -> list[PackedSequence]:
    parts = [
        unroll.unroll(view, leaves, leaf_L, None, b"now")
        for view, leaf_L in zip(views, advantages, strict=True)
        for leaves in unroll.divide(view, unroll.trained_leaves(leaf_L), budget)
    ]
    return packing.pack(parts, budget)


@pytest.mark.parametrize("seed", range(BATCHES))
def test_packed_loss_and_gradient_equal_those_of_flat_paths(
    tiny_llama: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    views, advantages = batch(seed)
    assert any(segment.kind is Kind.TOOL for view in views for segment in view.tree)
    model, reference = exact(tiny_llama(seed)), exact(tiny_llama(seed + 100))
    monkeypatch.setattr(mask, "choose", lambda *_: METHODS[seed % len(METHODS)])
    name, budget = ("ppo-clip", "decoupled")[seed % 2], (20, 60, 400)[seed % 3]
    expected, gradients = flat.flat_loss(
        model, views, advantages, name, REGULARISED, reference=reference
    )
    loss, packed = flat.packed(
        model, sequences(views, advantages, budget), name, REGULARISED, reference
    )
    assert loss == pytest.approx(expected, abs=1e-10)
    assert max(float((gradients[n] - packed[n]).abs().max()) for n in gradients) < 1e-9


def policy_tokens(view: TreeView, leaf: int) -> int:
    """Count a path's sampled tokens, from its segments alone."""
    end = view.leaves_L[leaf]
    pieces = view.tree.pieces(end.segment, end.end)
    return sum(end for segment, end in pieces if segment.kind is Kind.POLICY)


@pytest.mark.parametrize("seed", range(BATCHES))
def test_tokens_of_answers_are_predicted_by_nothing(seed: int) -> None:
    """So none has a term in a loss: there is no log-prob whose gradient it could be."""
    views, advantages = batch(seed)
    packed = sequences(views, advantages)
    read = {int(token) for sequence in packed for token in sequence.token_U}
    predicted = {int(token) for sequence in packed for token in sequence.token_E}
    assert read & set(GIVEN), "they are context"
    assert not predicted & set(GIVEN)
    trained = sum(int(sequence.mask_P_T.sum()) for sequence in packed)
    assert trained == sum(
        policy_tokens(view, int(leaf))
        for view, leaf_L in zip(views, advantages, strict=True)
        for leaf in np.flatnonzero(np.isfinite(leaf_L))
    )


def test_an_answer_that_were_trained_on_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail."""
    from banyan import view as module

    monkeypatch.setattr(module.Node, "trained", property(lambda node: True))
    packed = sequences(*batch(1))
    assert {int(token) for sequence in packed for token in sequence.token_E} & set(GIVEN)


@pytest.mark.parametrize("seed", range(2))
def test_lengths_entropy_and_kl_count_policy_tokens_alone(
    tiny_llama: Callable[..., Any], seed: int
) -> None:
    views, advantages = batch(seed)
    model, reference = exact(tiny_llama(seed)), exact(tiny_llama(seed + 100))
    model.set_attn_implementation("sdpa")
    reference.set_attn_implementation("sdpa")
    loss = losses.build("ppo-clip", REGULARISED)
    paths = [
        tokens
        for path in flat.sequences(views, advantages, loss.targets.forced)
        if (tokens := flat.gathered(model, path, reference)) is not None
    ]
    count = sum(tokens.logp_P_T.numel() for tokens in paths)
    entropy = sum(float(tokens.entropy_P_T.detach().sum()) for tokens in paths) / count
    kl = sum(float(mismatch(t.behaviour_P_T, t.proximal_P_T).sum()) for t in paths) / count
    packed = sequences(views, advantages)
    report, _ = flat.stepped(model, packed, "ppo-clip", REGULARISED, reference)
    assert (report.entropy, report.mismatch_kl) == (pytest.approx(entropy), pytest.approx(kl))
    assert torch.isfinite(torch.tensor(report.measures["reference_kl"]))
    group = GroupTrees("g", views)
    measured = metrics.of_batch([Credit(group, Grpo().estimate(group))], lambda segment: 0)
    lengths = [policy_tokens(view, leaf) for view in views for leaf in range(len(view.leaves_L))]
    assert measured["completion_tokens"] == pytest.approx(np.mean(lengths))
