"""GSPO: one ratio a path, s = exp(mean_t (logp − old)), clipped as PPO's (Zheng et al. 2025); always the mean over paths.

Each token has the value s and its own gradient s ∇logp, so that with one advantage a path the loss is −A s exactly, and
with an advantage a token it is the token variant of the paper. `over: product` takes exp(Σ_t …), the whole path's ratio.
"""

import torch

from banyan.losses import surrogates as settings
from services.learner.losses.ppo_clip import clipped
from services.learner.losses.tokens import LARGEST_LOG_RATIO, Tokens

_LARGEST = 10.0


class Gspo(settings.Gspo):
    """The surrogate with its settings."""

    def per_token(self, tokens: Tokens, old_P_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of each token, and whether its path's ratio was clipped."""
        ratio = self.ratio(tokens, old_P_T)
        return clipped(ratio, tokens, 1 - self.clip_low, 1 + self.clip_high, 0.0)

    def ratio(self, tokens: Tokens, old_P_T: torch.Tensor) -> torch.Tensor:
        """s for each token of its path, with the token's share of its gradient."""
        mask = tokens.mask_P_T
        difference = (
            (tokens.logp_P_T - old_P_T)
            .masked_fill(~mask, 0.0)
            .clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
        )
        count_P_1 = mask.sum(1, keepdim=True).clamp_min(1).to(difference.dtype)
        total_P_1 = difference.detach().sum(1, keepdim=True)
        own = difference - difference.detach()
        path = total_P_1 / count_P_1 + own if self.over == "mean" else total_P_1 + own * count_P_1
        return path.clamp(-LARGEST_LOG_RATIO, _LARGEST).exp()
