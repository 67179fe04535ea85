"""PPO's clipped surrogate with asymmetric and dual clip (Schulman et al. 2017; Ye et al. 2020; DAPO 2025).

r = exp(logp − old); l = max(−A r, −A clip(r, 1 − clip_low, 1 + clip_high)); for A < 0 at most −A · dual_clip. For foreign
tokens `delta` takes dual_clip's place: the two-sided clip of INTELLECT-2, whose δ is 4.

The decoupled form (`decoupled`) is this one to the proximal policy times the weight proximal / behaviour: with r = π / μ and
r_old = π_old / μ it is max(−A r, −A clip(r, r_old (1 − clip_low), r_old (1 + clip_high))).
"""

import torch

from banyan.losses import surrogates as settings
from services.learner.losses.tokens import Tokens

Bound = float | torch.Tensor


class PpoClip(settings.PpoClip):
    """The surrogate with its settings."""

    def per_token(self, tokens: Tokens, old_P_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of each token, and whether a bound took its gradient."""
        ceiling: Bound = self.dual_clip
        if self.delta:
            own = torch.full_like(tokens.logp_P_T, self.dual_clip or float("inf")).detach()
            ceiling = own.masked_fill(tokens.foreign_P_T, self.delta)
        ratio = tokens.ratio(old_P_T)
        return clipped(ratio, tokens, 1 - self.clip_low, 1 + self.clip_high, ceiling)


def clipped(
    ratio: torch.Tensor, tokens: Tokens, low: Bound, high: Bound, ceiling: Bound
) -> tuple[torch.Tensor, torch.Tensor]:
    """max(−A r, −A clip(r, low, high)), for A < 0 at most −A · ceiling (0.0: none); and where a bound took the gradient."""
    advantage = tokens.advantage_P_T
    free = -advantage * ratio
    bounded = -advantage * torch.clamp(ratio, low, high)  # type: ignore[arg-type]  # numbers, or a tensor each
    loss = torch.maximum(free, bounded)
    taken = bounded > free
    if isinstance(ceiling, torch.Tensor) or ceiling:
        most = -advantage * ceiling
        capped = (advantage < 0) & (loss > most)
        loss, taken = torch.where(capped, most, loss), taken | capped
    return loss, taken & tokens.mask_P_T
