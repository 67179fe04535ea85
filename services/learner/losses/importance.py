"""Weights that correct for the policy that sampled: w = π_proximal / π_drawn, without gradient (TIS), and what is rejected.

π_drawn is what the token was drawn from, so top-k and top-p are corrected for too. Forced tokens have the weight 1 and count
in no statistic: nobody drew them. A rejected token weighs nothing, and still counts in the denominators.
"""

import torch

from banyan.losses import parts as settings
from services.learner.losses.tokens import LARGEST_LOG_RATIO, Tokens


class Importance(settings.Importance):
    """Importance weights with their settings."""

    def weigh(self, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight of each token, and whether it was beyond a bound."""
        log = tokens.correction()
        if self.level == "sequence":
            log = (
                log.sum(1, keepdim=True).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).expand_as(log)
            )
        sampled = tokens.sampled_P_T
        free = log.exp().masked_fill(~sampled, 1.0)
        beyond = (free < self.floor) | (free > (self.cap or float("inf")))
        beyond &= sampled
        if self.bound == "mask":
            return free.masked_fill(beyond, 0.0), beyond
        near = free.clamp(self.floor, self.cap or None)
        return torch.where(sampled, near, free), beyond

    def sums(self, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum of a row's weights, and how many they are: of tokens, or of paths."""
        weight, sampled = self.weigh(tokens)[0], tokens.sampled_P_T
        if self.level == "token":
            return weight[sampled].sum(), sampled.sum()
        held = sampled.any(1)
        first = sampled.to(torch.uint8).argmax(1, keepdim=True)
        return weight.gather(1, first)[held, 0].sum(), held.sum()


class Rejection(settings.Rejection):
    """What is rejected, with its settings."""

    def rejected(self, tokens: Tokens) -> torch.Tensor:
        """Which sampled tokens are rejected."""
        sampled, d = tokens.sampled_P_T, tokens.correction()
        value = {"k1": d, "k2": d.square() / 2, "k3": d.exp() - d - 1}[self.by]
        if self.unit in ("sum", "mean"):
            value = value.sum(1, keepdim=True)
            if self.unit == "mean":
                value = value / sampled.sum(1, keepdim=True).clamp_min(1)
        out = self._out(value)
        if self.unit == "worst":
            out = (out & sampled).any(1, keepdim=True)
        return out & sampled

    def _out(self, value: torch.Tensor) -> torch.Tensor:
        low, high = self.bounds
        if self.by != "k1":
            return value > high
        ratio = value.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
        return (ratio < low) | (ratio > high)
