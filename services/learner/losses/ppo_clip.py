"""PPO's clipped surrogate with asymmetric and dual clip.

Schulman et al. 2017 (arXiv 1707.06347); Ye et al. 2020 (arXiv 1912.09729); DAPO: Yu et al. 2025
(arXiv 2503.14476). With r = exp(log π − old) the loss of a token is
max(−A r, −A clip(r, 1 − clip_low, 1 + clip_high)); for A < 0 at most −A · dual_clip. For foreign
tokens `delta` takes the place of dual_clip: the two-sided clip of INTELLECT-2 (arXiv 2505.07291),
whose δ is 4.

The decoupled form (`decoupled`) is this one to the proximal policy times the weight proximal /
behaviour: with r = π / μ and r_old = π_old / μ it is
max(−A r, −A clip(r, r_old (1 − clip_low), r_old (1 + clip_high))).
"""

import torch

from banyan.losses import surrogates as settings
from services.learner.losses.tokens import Tokens

Bound = float | torch.Tensor


class PpoClip(settings.PpoClip):
    """The surrogate with its settings."""

    def per_token(self, tokens: Tokens, old_P_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of each token, and true where a bound removed its gradient."""
        ceiling: Bound = self.dual_clip
        if self.delta:
            own = torch.full_like(tokens.logp_P_T, self.dual_clip or float("inf")).detach()
            ceiling = own.masked_fill(tokens.foreign_P_T, self.delta)
        return clipped(
            tokens.ratio(old_P_T),
            tokens,
            low=1 - self.clip_low,
            high=1 + self.clip_high,
            ceiling=ceiling,
        )


def clipped(
    ratio: torch.Tensor, tokens: Tokens, *, low: Bound, high: Bound, ceiling: Bound
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return max(−A r, −A clip(r, low, high)), and true where a bound removed the gradient.

    ceiling: for A < 0 the loss is at most −A · ceiling; 0.0 for no ceiling.
    """
    advantage = tokens.advantage_P_T
    free = -advantage * ratio
    # The bounds are numbers, or a tensor each.
    bounded = -advantage * torch.clamp(ratio, low, high)  # type: ignore[arg-type]
    loss = torch.maximum(free, bounded)
    is_bounded = bounded > free
    if isinstance(ceiling, torch.Tensor) or ceiling:
        largest = -advantage * ceiling
        capped = (advantage < 0) & (loss > largest)
        loss = torch.where(capped, largest, loss)
        is_bounded = is_bounded | capped
    return loss, is_bounded & tokens.mask_P_T
