"""PPO's clipped surrogate with asymmetric and dual clip (Schulman et al. 2017; Ye et al. 2020; DAPO 2025).

r = exp(logp − old); l = max(−A r, −A clip(r, 1 − clip_low, 1 + clip_high)); for A < 0 at most −A · dual_clip.
"""

from dataclasses import dataclass, field

import torch

from services.learner.losses.aggregate import Aggregate

_LARGEST_LOG_RATIO = 20.0


@dataclass(frozen=True)
class PpoClip:
    """Settings: how far a ratio may leave 1 below and above, and the bound for negative advantages (0 for none)."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 3.0
    aggregate: Aggregate = field(default_factory=Aggregate)

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low <= 1:
            raise ValueError(f"clip_low {self.clip_low} must lie in [0, 1]")
        if self.clip_high < 0:
            raise ValueError(f"clip_high {self.clip_high} must be at least 0")
        if self.dual_clip and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(f"dual_clip {self.dual_clip} must be above 1 + clip_high, or 0 for none")

    def per_token(
        self, logp_P_T: torch.Tensor, old_P_T: torch.Tensor, advantage_P_T: torch.Tensor, mask_P_T: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of each token, and whether a bound took its gradient."""
        difference = (logp_P_T - old_P_T).masked_fill(~mask_P_T, 0.0)
        ratio = difference.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()
        free = -advantage_P_T * ratio
        bounded = -advantage_P_T * ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss = torch.maximum(free, bounded)
        clipped = bounded > free
        if self.dual_clip:
            ceiling = -advantage_P_T * self.dual_clip
            capped = (advantage_P_T < 0) & (loss > ceiling)
            loss, clipped = torch.where(capped, ceiling, loss), clipped | capped
        return loss, clipped & mask_P_T
