"""Weights that correct for the sampling policy, w = π_proximal / π_drawn (TIS), and rejection.

Weights have no gradient. π_drawn is the distribution that the token was drawn from, so top-k and
top-p are corrected for too. Forced tokens have the weight 1 and count in no statistic: they were
not drawn. A rejected token weighs nothing, and still counts in the denominators.
"""

import torch

from banyan.losses import parts as settings
from services.learner.losses.tokens import LARGEST_LOG_RATIO, Tokens


class Importance(settings.Importance):
    """Importance weights with their settings."""

    def weigh(self, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weight of each token, and true where it was beyond a bound."""
        log = tokens.correction()
        if self.level == "sequence":
            total = log.sum(1, keepdim=True).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
            log = total.expand_as(log)
        sampled = tokens.sampled_P_T
        free = log.exp().masked_fill(~sampled, 1.0)
        beyond = (free < self.floor) | (free > (self.cap or float("inf")))
        beyond &= sampled
        if self.bound == "mask":
            return free.masked_fill(beyond, 0.0), beyond
        bounded = free.clamp(self.floor, self.cap or None)
        return torch.where(sampled, bounded, free), beyond

    def sums(self, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of a sequence's weights, and their number: of tokens, or of paths."""
        weight, sampled = self.weigh(tokens)[0], tokens.sampled_P_T
        if self.level == "token":
            return weight[sampled].sum(), sampled.sum()
        has_sampled = sampled.any(1)
        first = sampled.to(torch.uint8).argmax(1, keepdim=True)
        return weight.gather(1, first)[has_sampled, 0].sum(), has_sampled.sum()


class Rejection(settings.Rejection):
    """Rejection with its settings."""

    def rejected(self, tokens: Tokens) -> torch.Tensor:
        """Return true for the sampled tokens that are rejected."""
        sampled, d = tokens.sampled_P_T, tokens.correction()
        statistic = {"k1": d, "k2": d.square() / 2, "k3": d.exp() - d - 1}[self.by]
        if self.unit in ("sum", "mean"):
            statistic = statistic.sum(1, keepdim=True)
            if self.unit == "mean":
                statistic = statistic / sampled.sum(1, keepdim=True).clamp_min(1)
        outside = self._outside(statistic)
        if self.unit == "worst":
            outside = (outside & sampled).any(1, keepdim=True)
        return outside & sampled

    def _outside(self, statistic: torch.Tensor) -> torch.Tensor:
        low, high = self.bounds
        if self.by != "k1":
            return statistic > high
        ratio = statistic.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
        return (ratio < low) | (ratio > high)
