"""KL to a reference policy, estimated per token from d = logπ_ref − logπ: k1 = −d, k2 = d²/2, k3 = e^d − d − 1.

Of samples of π, k1 and k3 have the KL as their mean. As a loss only k2 has the KL's gradient; `k3+` has the value of k3 and
the gradient of k2.
"""

from dataclasses import dataclass

import torch

from services.learner.losses.tokens import LARGEST_LOG_RATIO

ESTIMATORS = ("k1", "k2", "k3", "k3+")
_LARGEST = 10.0


@dataclass(frozen=True)
class Kl:
    """coef: factor of the estimate. where: `loss` adds it to each token's loss, times the ratio with `by_ratio`; `reward`
    takes the sum over a leaf's path, at the log-probs that it was sampled with, from the leaf's reward."""

    coef: float = 0.001
    estimator: str = "k3"
    where: str = "loss"
    by_ratio: bool = False

    def __post_init__(self) -> None:
        if self.coef <= 0:
            raise ValueError(f"kl.coef {self.coef} must be above 0; leave kl out for none")
        if self.estimator not in ESTIMATORS:
            raise ValueError(f"kl.estimator {self.estimator!r} must be one of {', '.join(ESTIMATORS)}")
        if self.where not in ("loss", "reward"):
            raise ValueError(f"kl.where {self.where!r} must be loss or reward")
        if self.by_ratio and self.where == "reward":
            raise ValueError("kl.by_ratio is for kl.where loss")


def estimate(name: str, logp: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """The estimate of each token."""
    d = (reference - logp).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    if name == "k1":
        return -d
    k2 = d.square() / 2
    if name == "k2":
        return k2
    k3 = (d.exp() - d - 1).clamp(-_LARGEST, _LARGEST)
    return k3 if name == "k3" else k2 + (k3 - k2).detach()
