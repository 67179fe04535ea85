"""OTR: one-token rollouts on labels (arXiv 2509.26313), by the mean over draws instead of K draws.

At each place tokens are drawn from π', the policy at temperature κ; the label earns 1, any other
token β. In the mean over draws the loss is −[(1 − β) π'(x) log π(x) + β Σ_a π'(a) log π(a)]: that
of K draws without their noise. With β = 0 it is the log-prob of the label weighted by its own
probability. Labels are the tokens with an advantage: estimator `otr` gives it to right leaves.
"""

import torch

from banyan.losses import surrogates as settings
from services.learner.losses.tokens import Tokens
from services.learner.model.tempered import Softening


class Otr(settings.Otr):
    """The surrogate with its settings."""

    @property
    def softening(self) -> Softening:
        """Settings of π' for the pass."""
        return Softening(kappa=self.kappa, mean=self.beta != 0)

    def per_token(self, tokens: Tokens, old_P_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of each token; nothing is ever clipped."""
        assert tokens.soft_P_T is not None, "a pass for this loss says log π' too"
        worth = (1 - self.beta) * tokens.soft_P_T.exp() * tokens.logp_P_T
        if tokens.soft_mean_P_T is not None:
            worth = worth + self.beta * tokens.soft_mean_P_T
        return -tokens.advantage_P_T * worth, torch.zeros_like(tokens.mask_P_T)
