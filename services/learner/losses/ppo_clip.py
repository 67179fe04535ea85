"""PPO's clipped surrogate with asymmetric and dual clip (Schulman et al. 2017; Ye et al. 2020; DAPO 2025).

r = exp(logp − old); l = max(−A r, −A clip(r, 1 − clip_low, 1 + clip_high)); for A < 0 at most −A · dual_clip. For foreign
tokens `delta` takes dual_clip's place: the two-sided clip of INTELLECT-2, whose δ is 4.

The decoupled form (`decoupled`) is this one to the proximal policy times the weight proximal / behaviour: with r = π / μ and
r_old = π_old / μ it is max(−A r, −A clip(r, r_old (1 − clip_low), r_old (1 + clip_high))).
"""

from dataclasses import dataclass

import torch

from services.learner.losses.tokens import Tokens

Bound = float | torch.Tensor


@dataclass(frozen=True)
class PpoClip:
    """Settings: how far a ratio may leave 1 below and above, and the bounds for negative advantages (0 for none; a `delta`
    of 0 for the same as dual_clip)."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 3.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        check_clip(self.clip_low, self.clip_high)
        for name in ("dual_clip", "delta"):
            value = getattr(self, name)
            if value and value <= 1 + self.clip_high:
                raise ValueError(f"{name} {value} must be above 1 + clip_high, or 0 for none")

    def per_token(self, tokens: Tokens, old_P_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of each token, and whether a bound took its gradient."""
        ceiling: Bound = self.dual_clip
        if self.delta:
            own = torch.full_like(tokens.logp_P_T, self.dual_clip or float("inf")).detach()
            ceiling = own.masked_fill(tokens.foreign_P_T, self.delta)
        ratio = tokens.ratio(old_P_T)
        return clipped(ratio, tokens, 1 - self.clip_low, 1 + self.clip_high, ceiling)


def check_clip(low: float, high: float) -> None:
    """Raises ValueError for a range that is none."""
    if not 0 <= low <= 1:
        raise ValueError(f"clip_low {low} must lie in [0, 1]")
    if high < 0:
        raise ValueError(f"clip_high {high} must be at least 0")


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
