"""KL to a reference policy, estimated per token from d = log π_ref − log π.

k1 = −d, k2 = d²/2, k3 = e^d − d − 1 (Schulman 2020, "Approximating KL divergence"). Over samples of
π, k1 and k3 have the KL as their mean. As a loss only k2 has the gradient of the KL; `k3+` has the
value of k3 and the gradient of k2.
"""

import torch

from banyan.losses.parts import ESTIMATORS, Kl
from services.learner.losses.tokens import LARGEST_LOG_RATIO

__all__ = ["ESTIMATORS", "Kl", "estimate"]
_LARGEST = 10.0


def estimate(name: str, logp: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return the estimate of each token."""
    d = (reference - logp).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    if name == "k1":
        return -d
    k2 = d.square() / 2
    if name == "k2":
        return k2
    k3 = (d.exp() - d - 1).clamp(-_LARGEST, _LARGEST)
    return k3 if name == "k3" else k2 + (k3 - k2).detach()
