"""ECHO's clip per path (arXiv 2602.02150): the less sure its tail, the wider its range, the same to both sides.

ε = ε_min + (ε_max − ε_min) σ(κ (1 − C)); C is the mean probability, when sampled, of the path's last `tail` tokens.
"""

from dataclasses import dataclass

import torch

from services.learner.losses.ppo_clip import clipped
from services.learner.losses.tokens import Tokens


@dataclass(frozen=True)
class EchoClip:
    """Settings: the range of ε, its slope κ, the tail that confidence is measured over, and PPO's dual clip (0 for none)."""

    eps_min: float = 0.05
    eps_max: float = 0.2
    kappa: float = 4.0
    tail: int = 16
    dual_clip: float = 3.0

    def __post_init__(self) -> None:
        if not 0 <= self.eps_min <= self.eps_max <= 1:
            raise ValueError(f"eps_min {self.eps_min} and eps_max {self.eps_max} must be ordered within [0, 1]")
        if self.tail < 1:
            raise ValueError(f"tail {self.tail} must be at least 1")
        if self.dual_clip and self.dual_clip <= 1 + self.eps_max:
            raise ValueError(f"dual_clip {self.dual_clip} must be above 1 + eps_max, or 0 for none")

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
        return self.eps_min + (self.eps_max - self.eps_min) * torch.sigmoid(self.kappa * (1 - confidence_P))
