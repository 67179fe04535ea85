"""Aggregation: a weight per token, so that losses of sequences add up to the loss of the batch.

Paths without a trained token count nowhere.
"""

from dataclasses import dataclass

import torch

from banyan.losses import parts as settings
from banyan.losses.parts import MODES

__all__ = ["MODES", "Aggregate", "Totals"]


@dataclass(frozen=True)
class Totals:
    """Totals of the whole batch, over all its sequences.

    tokens: trained path tokens.
    paths: trained paths.
    unique: the same tokens, each counted once.
    weight: mean importance weight.
    """

    tokens: int
    paths: int
    unique: float = 0.0
    weight: float = 1.0


class Aggregate(settings.Aggregate):
    """The weights of tokens, with their settings."""

    def weights(
        self,
        mask_P_T: torch.Tensor,
        totals: Totals,
        dtype: torch.dtype = torch.float32,
        share_P_T: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the weight of each token, such that the sum over all sequences is the loss.

        share_P_T: as in Tokens.
        """
        mask = mask_P_T.to(dtype)
        tokens: float = totals.tokens
        if self.count == "nodes":
            assert share_P_T is not None
            mask, tokens = mask * share_P_T.to(dtype), totals.unique
        if self.mode == "token-mean":
            return mask / max(1, tokens)
        if self.mode == "seq-mean-token-mean":
            return mask / mask.sum(1, keepdim=True).clamp_min(1.0) / max(1, totals.paths)
        if self.mode == "seq-mean-token-sum":
            return mask / max(1, totals.paths)
        if self.mode == "seq-mean-token-sum-const":
            return mask / (self.length * max(1, totals.paths))
        return mask / self.length
