"""REINFORCE: −A log π (Williams 1992). No ratio, no clip; right only for data of the policy itself."""

from dataclasses import dataclass, field

import torch

from services.learner.losses.aggregate import Aggregate


@dataclass(frozen=True)
class Reinforce:
    """No settings of its own."""

    aggregate: Aggregate = field(default_factory=Aggregate)

    def per_token(
        self, logp_P_T: torch.Tensor, old_P_T: torch.Tensor, advantage_P_T: torch.Tensor, mask_P_T: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of each token; nothing is ever clipped."""
        return -advantage_P_T * logp_P_T, torch.zeros_like(mask_P_T)
