"""CISPO: −sg[clip(r)] A log π (MiniMax-M1 2025, arXiv 2506.13585).

The clip bounds the weight of a token and never removes its gradient.
"""

import torch

from banyan.losses import surrogates as settings
from services.learner.losses.tokens import Tokens


class Cispo(settings.Cispo):
    """The surrogate with its settings."""

    def per_token(self, tokens: Tokens, old_P_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of each token, and true where its weight was bounded."""
        ratio = tokens.ratio(old_P_T).detach()
        weight = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss = -weight * tokens.advantage_P_T * tokens.logp_P_T
        return loss, (weight != ratio) & tokens.mask_P_T
