"""Aggregation: a weight per token, so that losses of sequences add up to the loss of the batch.

Paths without a trained token count nowhere; those of groups that teach nothing count where the
loss says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from banyan.losses import parts as settings
from banyan.losses.parts import MODES
from services.learner.packing.packing import PackedSequence
from services.learner.packing.silent import Silent

__all__ = ["MODES", "Aggregate", "Totals", "totals_of"]


@dataclass(frozen=True)
class Totals:
    """Totals of the whole batch, over all its sequences.

    tokens: trained path tokens.
    paths: trained paths.
    unique: the same tokens, each counted once.
    weight: mean importance weight.
    """

    tokens: float
    paths: float
    unique: float = 0.0
    weight: float = 1.0

    def beside(self, silent: Silent) -> "Totals":
        """Return the totals with those of paths whose loss is 0."""
        return replace(
            self,
            tokens=self.tokens + silent.tokens,
            paths=self.paths + silent.paths,
            unique=self.unique + silent.unique,
        )


def totals_of(sequences: Sequence[PackedSequence]) -> Totals:
    """Return the trained path tokens, paths and unique tokens of sequences."""
    return Totals(
        tokens=sum(int(sequence.mask_P_T.sum()) for sequence in sequences),
        paths=sum(len(sequence.mask_P_T) for sequence in sequences),
        unique=sum(float(sequence.share_P_T.sum()) for sequence in sequences),
    )


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
