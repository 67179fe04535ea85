"""How losses of tokens become the loss of a batch: a weight per token, so that rows can be added up one by one.

Sequences without a trained token count nowhere.
"""

from dataclasses import dataclass

import torch

MODES = (
    "token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-sum-const",
)
_CONSTANT = MODES[3:]


@dataclass(frozen=True)
class Totals:
    """Trained path tokens and paths of the whole batch, over all its rows. unique: the same tokens, each counted once.
    weight: mean importance weight."""

    tokens: int
    paths: int
    unique: float = 0.0
    weight: float = 1.0


@dataclass(frozen=True)
class Aggregate:
    """token-mean: Σ l / tokens. seq-mean-token-mean: mean over paths of their mean. seq-mean-token-sum: mean over paths of
    their sum. seq-mean-token-sum-norm: Σ l / `length`, a constant (Dr. GRPO). seq-mean-token-sum-const: mean over paths of
    their sum / `length` (TRL's form of it).

    count: how often a token counts that several paths hold. paths: once a path. nodes: once, its loss being the mean over
    its paths; with an advantage per node that is the node's loss. A path's own mean would then be of nothing, so
    seq-mean-token-mean is refused.
    """

    mode: str = "token-mean"
    length: int = 0
    count: str = "paths"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} must be one of {', '.join(MODES)}")
        if self.mode in _CONSTANT and self.length < 1:
            raise ValueError(f"mode {self.mode} needs `length`, a constant of at least 1 (got {self.length})")
        if self.count not in ("paths", "nodes"):
            raise ValueError(f"count {self.count!r} must be paths or nodes")
        if self.count == "nodes" and self.mode == "seq-mean-token-mean":
            raise ValueError("count nodes counts a token once, mode seq-mean-token-mean once a path; use token-mean")

    def weights(
        self,
        mask_P_T: torch.Tensor,
        totals: Totals,
        dtype: torch.dtype = torch.float32,
        share_P_T: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Weight of each token of a row, such that the sum over all rows is the loss of the batch. `share`: see Tokens."""
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
