"""ECHO's clip per path (arXiv 2602.02150): the less sure the tail of a path, the wider its range.

ε = ε_min + (ε_max − ε_min) σ(κ (1 − C)), the same to both sides. C is the mean probability, at
sampling, of the path's last `tail` tokens.
"""

import torch

from banyan.losses import surrogates as settings
from services.learner.losses.ppo_clip import clipped
from services.learner.losses.tokens import Tokens


class EchoClip(settings.EchoClip):
    """The surrogate with its settings."""

    def per_token(self, tokens: Tokens, old_P_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of each token, and true where a bound removed its gradient."""
        eps_P_1 = self.range(self.confidence(tokens))[:, None]
        return clipped(
            tokens.ratio(old_P_T),
            tokens,
            low=1 - eps_P_1,
            high=1 + eps_P_1,
            ceiling=self.dual_clip,
        )

    def confidence(self, tokens: Tokens) -> torch.Tensor:
        """Return C of each path."""
        mask = tokens.mask_P_T
        remaining = mask.flip(1).cumsum(1).flip(1)  # tokens from here to the end
        tail = (mask & (remaining <= self.tail)).to(tokens.behaviour_P_T.dtype)
        return (tokens.behaviour_P_T.exp() * tail).sum(1) / tail.sum(1).clamp_min(1.0)

    def range(self, confidence_P: torch.Tensor) -> torch.Tensor:
        """Return ε of each path."""
        share_P = torch.sigmoid(self.kappa * (1 - confidence_P))
        return self.eps_min + (self.eps_max - self.eps_min) * share_P
