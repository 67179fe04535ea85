"""CISPO: −sg[clip(r)] A log π (MiniMax-M1 2025). The clip bounds the weight of a token, never takes its gradient."""

from dataclasses import dataclass

import torch

from services.learner.losses.ppo_clip import check_clip
from services.learner.losses.tokens import Tokens


@dataclass(frozen=True)
class Cispo:
    """The weight stays in 1 − clip_low .. 1 + clip_high. By default it has no lower bound, and 5 as the upper one."""

    clip_low: float = 1.0
    clip_high: float = 4.0

    def __post_init__(self) -> None:
        check_clip(self.clip_low, self.clip_high)

    def per_token(self, tokens: Tokens, old_P_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of each token, and whether its weight was bounded."""
        ratio = tokens.ratio(old_P_T).detach()
        weight = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return -weight * tokens.advantage_P_T * tokens.logp_P_T, (weight != ratio) & tokens.mask_P_T
