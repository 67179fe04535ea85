"""Weights that correct for the policy that sampled: w = π_proximal / π_drawn, without gradient (TIS), and what is rejected.

π_drawn is what the token was drawn from, so top-k and top-p are corrected for too. Forced tokens have the weight 1 and count
in no statistic: nobody drew them. A rejected token weighs nothing, and still counts in the denominators.
"""

from dataclasses import dataclass

import torch

from services.learner.losses.tokens import LARGEST_LOG_RATIO, Tokens

LEVELS = ("token", "sequence")
BOUNDS = ("truncate", "mask")
STATISTICS = ("k1", "k2", "k3")
OVER = ("token", "worst", "sum", "mean")


@dataclass(frozen=True)
class Importance:
    """level: a weight a token, or one a path (the product of its tokens'). bound: what is beyond `cap` or `floor` (0 for
    none) is brought back to it, or weighs nothing. normalise: weights are divided by their mean over the batch."""

    level: str = "sequence"
    bound: str = "truncate"
    cap: float = 2.0
    floor: float = 0.0
    normalise: bool = False

    def __post_init__(self) -> None:
        _known("level", self.level, LEVELS)
        _known("bound", self.bound, BOUNDS)
        if self.cap < 0 or self.floor < 0 or (self.cap and self.floor > self.cap):
            raise ValueError(f"floor {self.floor} and cap {self.cap} must be ordered, at least 0, and 0 for none")

    def weigh(self, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight of each token, and whether it was beyond a bound."""
        log = tokens.drift()
        if self.level == "sequence":
            log = log.sum(1, keepdim=True).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).expand_as(log)
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


@dataclass(frozen=True)
class Rejection:
    """Rejects a token (over: token) or a path by how far sampling and training are apart there.

    by: k1, the ratio itself; k2, half the squared log-ratio; k3, e^d − d − 1. over: each token by itself; a path by its
    worst token, by its sum (k1: the ratio of the path) or by its mean (k1: the geometric mean). k1 must lie in low..high, k2
    and k3 must be at most high.
    """

    by: str = "k1"
    over: str = "sum"
    low: float = 0.5
    high: float = 2.0

    def __post_init__(self) -> None:
        _known("by", self.by, STATISTICS)
        _known("over", self.over, OVER)
        if self.high <= 0 or not 0 <= self.low < self.high:
            raise ValueError(f"low {self.low} and high {self.high} must be ordered and at least 0")

    def rejected(self, tokens: Tokens) -> torch.Tensor:
        """Which sampled tokens are rejected."""
        sampled, d = tokens.sampled_P_T, tokens.drift()
        value = {"k1": d, "k2": d.square() / 2, "k3": d.exp() - d - 1}[self.by]
        if self.over in ("sum", "mean"):
            value = value.sum(1, keepdim=True)
            if self.over == "mean":
                value = value / sampled.sum(1, keepdim=True).clamp_min(1)
        out = self._out(value)
        if self.over == "worst":
            out = (out & sampled).any(1, keepdim=True)
        return out & sampled

    def _out(self, value: torch.Tensor) -> torch.Tensor:
        if self.by != "k1":
            return value > self.high
        ratio = value.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
        return (ratio < self.low) | (ratio > self.high)


def _known(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} {value!r} must be one of {', '.join(known)}")
