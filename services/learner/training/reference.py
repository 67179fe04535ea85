"""The reference policy: the run's base model, frozen, for a KL in the loss or in the rewards."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from banyan.credit.estimate import ScoredTree
from banyan.tree import Leaf
from banyan.view import TreeView
from services.learner.losses.kl import Kl, estimate
from services.learner.model import load as models
from services.learner.packing import packing, unroll


def load(folder: Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Return the model in a folder, frozen, on the device and in the precision of the policy."""
    model = models.load(folder)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.to(dtype)
    moved: PreTrainedModel = model.to(device)  # type: ignore[arg-type]
    return moved


def penalised(tree: ScoredTree, model: PreTrainedModel, kl: Kl, budget: int) -> ScoredTree:
    """Return the tree with coef · Σ k of each leaf's path subtracted from its reward.

    It depends on recorded log-probs and the frozen model alone, so a batch that is trained again
    has the same rewards.
    """
    penalty = penalties(tree, model, kl, budget)
    rewards = {
        leaf: None if reward is None else reward - penalty.get(leaf, 0.0)
        for leaf, reward in tree.rewards.items()
    }
    return replace(tree, rewards=rewards)


@torch.no_grad()
def penalties(
    tree: ScoredTree, model: PreTrainedModel, kl: Kl, budget: int
) -> Mapping[Leaf, float]:
    """Return coef · Σ k over the sampled tokens of each scored leaf's path."""
    view = TreeView(tree.tree, tree.leaves, tree.rewards)
    found: dict[Leaf, float] = {}
    for run in unroll.divide(view, view.scored_L, budget):
        piece = unroll.unroll(view, run, np.zeros(len(view.leaves_L)), None, b"")
        leaves = [
            view.leaves_L[leaf]
            for leaf, path in zip(run, piece.paths, strict=True)
            if len(path.token_T)
        ]
        for sequence in packing.pack([piece], budget):
            logp_E = models.forward(model, sequence).logp_E
            index_P_T = torch.from_numpy(sequence.index_P_T).to(logp_E.device)
            reference_P_T = logp_E[index_P_T].double().cpu()
            behaviour_P_T = torch.from_numpy(sequence.behaviour_P_T)
            k_P_T = estimate(kl.estimator, behaviour_P_T, reference_P_T)
            total_P = k_P_T.masked_fill(~torch.from_numpy(sequence.mask_P_T), 0.0).sum(1)
            found |= {leaf: kl.coef * float(k) for leaf, k in zip(leaves, total_P, strict=True)}
    return found
