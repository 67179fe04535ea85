"""Sums over the sequences of a batch, from which a step reports its means."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from services.learner.losses.tally import Tally
from services.learner.losses.tokens import Tokens


@dataclass
class StepSums:
    """Sums over the sampled path tokens of a batch's first epoch, and values by optimizer step.

    losses: loss of each optimizer step
    norms: gradient norm of each, before clipping
    applied: steps that moved the weights
    mismatch: summed KL(sampling ‖ training) in nats
    entropy: summed entropy in nats
    foreign: tokens that other weights sampled
    tokens: sampled path tokens
    tally: measures of the loss
    """

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    applied: int = 0
    mismatch: float = 0.0
    entropy: float = 0.0
    foreign: float = 0.0
    tokens: int = 0
    tally: Tally = field(default_factory=Tally)

    def add_tokens(self, tokens: Tokens) -> None:
        """Add the numbers of a sequence that do not depend on the loss."""
        sampled = tokens.sampled_P_T
        self.mismatch += float(mismatch(tokens.behaviour_P_T, tokens.proximal_P_T)[sampled].sum())
        self.entropy += float(tokens.entropy_P_T.detach()[sampled].sum())
        self.foreign += float((tokens.foreign_P_T & sampled).sum())
        self.tokens += int(sampled.sum())
        self.tally.watch(tokens)

    def add_rank(self, other: "StepSums") -> None:
        """Add the tokens of another rank; losses and norms are the batch's on every rank."""
        self.mismatch += other.mismatch
        self.entropy += other.entropy
        self.foreign += other.foreign
        self.tokens += other.tokens
        self.tally.join(other.tally)


def mismatch(behaviour: torch.Tensor, current: torch.Tensor) -> torch.Tensor:
    """Estimate KL(sampling ‖ training) per token by k3: e^d − d − 1 with d = current − behaviour.

    Both are log-probs over the whole vocabulary at the same temperature.
    """
    difference = (current - behaviour).clamp(-20.0, 20.0)
    return difference.exp() - difference - 1


def mean_of_finite(values: Sequence[float]) -> float:
    """Return the mean of the finite values, or of all values where none is finite.

    A skipped optimizer step is counted elsewhere, and must not hide the others' numbers.
    """
    finite = [value for value in values if math.isfinite(value)] or values
    return sum(finite) / len(finite)
