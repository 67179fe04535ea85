"""GSPO: one ratio per path, s = exp(mean_t (log π − old)), clipped as PPO's; the mean over paths.

Zheng et al. 2025, arXiv 2507.18071. Each token has the value s and its own gradient s ∇ log π, so
that with one advantage per path the loss is −A s exactly, and with an advantage per token it is the
token variant of the paper. `over: product` takes exp(Σ_t …), the ratio of the whole path.
"""

import torch

from banyan.losses import surrogates as settings
from services.learner.losses.ppo_clip import clipped
from services.learner.losses.tokens import LARGEST_LOG_RATIO, Tokens

_LARGEST = 10.0  # of log s


class Gspo(settings.Gspo):
    """The surrogate with its settings."""

    def per_token(self, tokens: Tokens, old_P_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of each token, and true where its path's ratio was clipped."""
        return clipped(
            self.ratio(tokens, old_P_T),
            tokens,
            low=1 - self.clip_low,
            high=1 + self.clip_high,
            ceiling=0.0,
        )

    def ratio(self, tokens: Tokens, old_P_T: torch.Tensor) -> torch.Tensor:
        """Return s for each token of its path, with the token's share of its gradient."""
        mask = tokens.mask_P_T
        difference = (tokens.logp_P_T - old_P_T).masked_fill(~mask, 0.0)
        difference = difference.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
        count_P_1 = mask.sum(1, keepdim=True).clamp_min(1).to(difference.dtype)
        total_P_1 = difference.detach().sum(1, keepdim=True)
        own = difference - difference.detach()  # 0, with a gradient
        if self.over == "mean":
            log_ratio = total_P_1 / count_P_1 + own
        else:
            log_ratio = total_P_1 + own * count_P_1
        return log_ratio.clamp(-LARGEST_LOG_RATIO, _LARGEST).exp()
