"""ECHO's clip per path (arXiv 2602.02150): the less sure its tail, the wider its range, the same to both sides.

ε = ε_min + (ε_max − ε_min) σ(κ (1 − C)); C is the mean probability, when sampled, of the path's last `tail` tokens.
"""

import torch

from banyan.losses import surrogates as settings
from services.learner.losses.ppo_clip import clipped
from services.learner.losses.tokens import Tokens


class EchoClip(settings.EchoClip):
    """The surrogate with its settings."""

    def per_token(self, tokens: Tokens, old_P_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of each token, and whether a bound took its gradient."""
        eps_P_1 = self.range(self.confidence(tokens))[:, None]
        return clipped(tokens.ratio(old_P_T), tokens, 1 - eps_P_1, 1 + eps_P_1, self.dual_clip)

    def confidence(self, tokens: Tokens) -> torch.Tensor:
        """Of each path: mean probability of its last tokens when they were sampled."""
        mask = tokens.mask_P_T
        left = mask.flip(1).cumsum(1).flip(1)  # tokens from here to the end
        tail = (mask & (left <= self.tail)).to(tokens.behaviour_P_T.dtype)
        return (tokens.behaviour_P_T.exp() * tail).sum(1) / tail.sum(1).clamp_min(1.0)

    def range(self, confidence_P: torch.Tensor) -> torch.Tensor:
        """ε of each path."""
        return self.eps_min + (self.eps_max - self.eps_min) * torch.sigmoid(
            self.kappa * (1 - confidence_P)
        )
