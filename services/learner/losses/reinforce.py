"""REINFORCE: −A log π (Williams 1992).

No ratio, no clip; right for data of the policy itself, or with importance weights.
"""

import torch

from banyan.losses import surrogates as settings
from services.learner.losses.tokens import Tokens


class Reinforce(settings.Reinforce):
    """The surrogate; it has no settings."""

    def per_token(self, tokens: Tokens, old_P_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of each token; nothing is ever clipped."""
        return -tokens.advantage_P_T * tokens.logp_P_T, torch.zeros_like(tokens.mask_P_T)
