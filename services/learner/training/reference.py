"""The reference policy: the run's base model, frozen. Its log-probs go into losses, or its KL is taken from rewards."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from banyan.tree import Leaf
from banyan.view import TreeView
from services.learner.data.credit import ScoredTree
from services.learner.losses.kl import Kl, estimate
from services.learner.model import load as models
from services.learner.packing import packing, unroll


def load(folder: Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The model in a folder, frozen, computing where and in the precision that the policy computes in."""
    model = models.load(folder)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.to(dtype)
    moved: PreTrainedModel = model.to(device)  # type: ignore[arg-type]
    return moved


def penalised(one: ScoredTree, model: PreTrainedModel, kl: Kl, budget: int) -> ScoredTree:
    """The tree with coef · Σ k of each leaf's path taken from its reward. Made of recorded log-probs and the frozen model
    alone, so a batch that is trained again has the same rewards."""
    penalty = penalties(one, model, kl, budget)
    rewards = {
        leaf: None if r is None else r - penalty.get(leaf, 0.0) for leaf, r in one.rewards.items()
    }
    return replace(one, rewards=rewards)


@torch.no_grad()
def penalties(one: ScoredTree, model: PreTrainedModel, kl: Kl, budget: int) -> Mapping[Leaf, float]:
    """coef · Σ k over the sampled tokens of each scored leaf's path."""
    view = TreeView(one.tree, one.leaves, one.rewards)
    found: dict[Leaf, float] = {}
    for run in unroll.divide(view, view.scored_L, budget):
        piece = unroll.unroll(view, run, np.zeros(len(view.leaves_L)), None, b"")
        leaves = [
            view.leaves_L[leaf]
            for leaf, path in zip(run, piece.paths, strict=True)
            if len(path.token_T)
        ]
        for row in packing.pack([piece], budget):
            logp_E = models.forward(model, row).logp_E
            reference_P_T = logp_E[torch.from_numpy(row.index_P_T).to(logp_E.device)].double().cpu()
            k_P_T = estimate(kl.estimator, torch.from_numpy(row.behaviour_P_T), reference_P_T)
            total_P = k_P_T.masked_fill(~torch.from_numpy(row.mask_P_T), 0.0).sum(1)
            found |= {leaf: kl.coef * float(k) for leaf, k in zip(leaves, total_P, strict=True)}
    return found
