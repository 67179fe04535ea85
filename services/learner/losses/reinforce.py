"""REINFORCE: −A log π (Williams 1992). No ratio, no clip; right for data of the policy itself, or with weights."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from services.learner.losses.tokens import Tokens


@dataclass(frozen=True)
class Reinforce:
    """No settings of its own."""

    uses_ratio: ClassVar[bool] = False

    def per_token(self, tokens: Tokens, old_P_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of each token; nothing is ever clipped."""
        return -tokens.advantage_P_T * tokens.logp_P_T, torch.zeros_like(tokens.mask_P_T)
