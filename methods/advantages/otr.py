"""otr: one-token rollouts: every token of a stored answer is the label of its own decision.

Paper: OTR, arXiv 2509.26313
Formula: at each place K draws from π' = softmax(logits / κ); loss −(1/K) Σ R(a) log π(a)
Left out: drawn children in the tree; the loss `otr` makes the draws

The label earns 1, any other token β < 1. The K children of a place are never stored: the loss is a
count, N_label · log π(label) + β Σ N_a · log π(a), which needs the logits that only the loss sees.
So the estimator gives the facts of the tree: the leaves that are labels (reward ≥ `right`) have 1
on each of their tokens and the others take no part; no baseline, no scale. `optimise.loss: otr`
does the rest, by the mean over draws; with other losses labels are learnt as they are. The draws
and their worth are `weights` and `expected_loss` below; with β = 0 the mean loss is −π'(label) ·
log π(label).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from banyan.credit import group as groups
from banyan.credit.stats import Floats
from banyan.plugins import Advantages, GroupTrees
from banyan.plugins import checks as shared


@dataclass(frozen=True)
class Otr:
    """Settings. right: reward from which a leaf is a label."""

    alone: ClassVar[bool] = True
    right: float = 0.5

    def __post_init__(self) -> None:
        shared.finite(self, ("right",))

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return 1 for each leaf that is a label, nan for the others."""
        rewards_L = groups.rewards_of(group)
        labels_L = np.isfinite(rewards_L) & (np.nan_to_num(rewards_L) >= self.right)
        skip = (
            ""
            if labels_L.any()
            else f"no leaf has a reward of at least {self.right:g} to learn from"
        )
        return Advantages(groups.by_tree(group, np.where(labels_L, 1.0, np.nan)), skip=skip)


def softened(logprob_V: Floats, kappa: float = 1.3) -> Floats:
    """Return π', the policy at temperature κ."""
    raised_V = np.exp((logprob_V - logprob_V.max()) / kappa)
    return np.asarray(raised_V / raised_V.sum())


def weights(drawn_K: npt.NDArray[np.int64], label: int, beta: float, vocabulary: int) -> Floats:
    """Return the factor of each token's log-prob: its count over K, times 1 for the label or β."""
    share_V = np.bincount(drawn_K, minlength=vocabulary) / len(drawn_K)
    return np.where(np.arange(vocabulary) == label, share_V, beta * share_V)


def expected_weights(logprob_V: Floats, label: int, beta: float, kappa: float = 1.3) -> Floats:
    """Return the mean of `weights` over draws."""
    share_V = softened(logprob_V, kappa)
    return np.where(np.arange(len(share_V)) == label, share_V, beta * share_V)


def expected_loss(logprob_V: Floats, label: int, beta: float, kappa: float = 1.3) -> float:
    """Return the mean loss of one place."""
    return float(-(expected_weights(logprob_V, label, beta, kappa) * logprob_V).sum())


def ascent(logprob_V: Floats, weight_V: Floats) -> Floats:
    """Return the direction that the logits move in: Σ_a w_a (1[a] − π)."""
    return np.asarray(weight_V - weight_V.sum() * np.exp(logprob_V))
