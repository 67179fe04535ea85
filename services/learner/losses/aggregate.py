"""How losses of tokens become the loss of a batch: a weight per token, so that rows can be added up one by one.

Sequences without a trained token count nowhere.
"""

from dataclasses import dataclass

import torch

MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")


@dataclass(frozen=True)
class Totals:
    """Trained path tokens and paths of the whole batch, over all its rows."""

    tokens: int
    paths: int


@dataclass(frozen=True)
class Aggregate:
    """token-mean: Σ l / tokens. seq-mean-token-mean: mean over paths of their mean. seq-mean-token-sum: mean over paths of
    their sum. seq-mean-token-sum-norm: Σ l / `length`, a constant (Dr. GRPO)."""

    mode: str = "token-mean"
    length: int = 0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} must be one of {', '.join(MODES)}")
        if self.mode == "seq-mean-token-sum-norm" and self.length < 1:
            raise ValueError(f"mode seq-mean-token-sum-norm needs `length`, a constant of at least 1 (got {self.length})")

    def weights(self, mask_P_T: torch.Tensor, totals: Totals, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Weight of each token of a row, such that the sum over all rows is the loss of the batch."""
        mask = mask_P_T.to(dtype)
        if self.mode == "token-mean":
            return mask / max(1, totals.tokens)
        if self.mode == "seq-mean-token-mean":
            return mask / mask.sum(1, keepdim=True).clamp_min(1.0) / max(1, totals.paths)
        if self.mode == "seq-mean-token-sum":
            return mask / max(1, totals.paths)
        return mask / self.length
