"""CISPO: −sg[clip(r)] A log π (MiniMax-M1 2025). The clip bounds the weight of a token, never takes its gradient."""

import torch

from banyan.losses import surrogates as settings
from services.learner.losses.tokens import Tokens


class Cispo(settings.Cispo):
    """The surrogate with its settings."""

    def per_token(self, tokens: Tokens, old_P_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of each token, and whether its weight was bounded."""
        ratio = tokens.ratio(old_P_T).detach()
        weight = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return -weight * tokens.advantage_P_T * tokens.logp_P_T, (weight != ratio) & tokens.mask_P_T
