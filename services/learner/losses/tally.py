"""What the rows of a batch say of it: sums, and of how many, added row by row in a fixed order.

Beside what a loss says: how far training is from sampling, per sampled token. `ess`: the effective share of the tokens under
the weights π_proximal / π_behaviour; `path_ess` the same of paths. `ratio_…`: shares of the tokens by that weight.
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
        self._of: dict[str, float] = defaultdict(float)

    def add(self, measures: Measures) -> None:
        """Takes what a row says."""
        for name, (total, of) in measures.items():
            self._sum[name] += total
            self._of[name] += of

    def join(self, other: "Tally") -> None:
        """Takes what another tally holds."""
        self.add({name: (total, other._of[name]) for name, total in other._sum.items()})

    def watch(self, tokens: Tokens) -> None:
        """Takes how far training is from sampling in a row."""
        log, sampled = tokens.drift().double(), tokens.sampled_P_T
        path = log.sum(1)[sampled.any(1)].clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
        token = log[sampled].exp()
        for name, weight in (("token", token), ("path", path)):
            self.add(
                {
                    f"{name}_weight": (float(weight.sum()), len(weight)),
                    f"{name}_square": (float(weight @ weight), 1.0),
                }
            )
        found = torch.bucketize(token, torch.tensor(EDGES, dtype=token.dtype, device=token.device))
        counts = torch.bincount(found, minlength=len(BINS)).tolist()
        self.add(
            {f"ratio_{name}": (float(n), len(token)) for name, n in zip(BINS, counts, strict=True)}
        )

    def means(self) -> dict[str, float]:
        """By name; 0 of nothing."""
        hidden = {f"{name}_{of}" for name in ("token", "path") for of in ("weight", "square")}
        said = {n: s / max(1.0, self._of[n]) for n, s in self._sum.items() if n not in hidden}
        return said | {"ess": self._effective("token"), "path_ess": self._effective("path")}

    def _effective(self, name: str) -> float:
        total, count, square = (
            self._sum[f"{name}_weight"],
            self._of[f"{name}_weight"],
            self._sum[f"{name}_square"],
        )
        return total * total / (count * square) if count else 0.0
