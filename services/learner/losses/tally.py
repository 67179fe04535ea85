"""Measures of a batch: sums with the number of summands, added sequence by sequence in fixed order.

Besides the measures of a loss: how far training is from sampling, per sampled token. `ess`:
effective share of the tokens under the weights π_proximal / π_behaviour; `path_ess` the same of
paths. `ratio_…`: shares of the tokens by that weight.
"""

from collections import defaultdict

import torch

from services.learner.losses.composed import Measures
from services.learner.losses.tokens import LARGEST_LOG_RATIO, Tokens

EDGES = (0.5, 0.8, 1.25, 2.0)
BINS = ("below_0.5", "0.5_0.8", "0.8_1.25", "1.25_2", "above_2")


class Tally:
    """Sums by name."""

    def __init__(self) -> None:
        self._sum: dict[str, float] = defaultdict(float)
        self._count: dict[str, float] = defaultdict(float)

    def add(self, measures: Measures) -> None:
        """Add the measures of a sequence."""
        for name, (total, count) in measures.items():
            self._sum[name] += total
            self._count[name] += count

    def join(self, other: "Tally") -> None:
        """Add the sums of another tally."""
        self.add({name: (total, other._count[name]) for name, total in other._sum.items()})

    def watch(self, tokens: Tokens) -> None:
        """Add how far training is from sampling in a sequence."""
        log, sampled = tokens.drift().double(), tokens.sampled_P_T
        log_path = log.sum(1)[sampled.any(1)].clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
        token_weight, path_weight = log[sampled].exp(), log_path.exp()
        for unit, weight in (("token", token_weight), ("path", path_weight)):
            self.add(
                {
                    f"{unit}_weight": (float(weight.sum()), len(weight)),
                    f"{unit}_square": (float(weight @ weight), 1.0),
                }
            )
        edges = torch.tensor(EDGES, dtype=token_weight.dtype, device=token_weight.device)
        counts = torch.bincount(torch.bucketize(token_weight, edges), minlength=len(BINS)).tolist()
        self.add(
            {
                f"ratio_{name}": (float(count), len(token_weight))
                for name, count in zip(BINS, counts, strict=True)
            }
        )

    def means(self) -> dict[str, float]:
        """Return the means by name; 0 for a mean of nothing."""
        hidden = {f"{unit}_{of}" for unit in ("token", "path") for of in ("weight", "square")}
        means = {
            name: total / max(1.0, self._count[name])
            for name, total in self._sum.items()
            if name not in hidden
        }
        return means | {"ess": self._effective("token"), "path_ess": self._effective("path")}

    def _effective(self, unit: str) -> float:
        """Return the effective share (Σw)² / (n Σw²)."""
        total = self._sum[f"{unit}_weight"]
        count = self._count[f"{unit}_weight"]
        square = self._sum[f"{unit}_square"]
        return total * total / (count * square) if count else 0.0
