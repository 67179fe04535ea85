"""echo's numbers: entropy and confidence of tokens, their windows, where to branch, how wide, and where to cut (card 1).

All is of the K likeliest tokens, renormalised. Two measures of confidence C exist: `mean_probability`, the mean of the k
largest probabilities (in 0..1/k), and `neg_mean_log`, minus the mean of their logarithms (at least ln k).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MEASURES = ("mean_probability", "neg_mean_log")
_LEAST = 1e-9  # what a probability is taken for at least, in logarithms
Values = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def entropy_and_confidence(top_logprobs_T_K: npt.ArrayLike, k: int, measure: str) -> tuple[Values, Values]:
    """H and C of each token."""
    logprobs = np.asarray(top_logprobs_T_K, np.float64)
    p = np.exp(logprobs - logprobs.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    logs = np.log(np.maximum(p, _LEAST))
    likeliest = slice(0, min(k, p.shape[1]))
    c = p[:, likeliest].mean(1) if measure == "mean_probability" else -logs[:, likeliest].mean(1)
    return -(p * logs).sum(1), c


@dataclass(frozen=True, eq=False, slots=True)
class Profile:
    """H and C along a path, and of each token: group and tail confidence, and the rise of H over those before."""

    entropy_T: Values
    group_T: Values
    tail_T: Values
    rise_T: Values

    def __len__(self) -> int:
        return len(self.entropy_T)

    def first(self, tokens: int) -> "Profile":
        """That of the path's first tokens."""
        return Profile(self.entropy_T[:tokens], self.group_T[:tokens], self.tail_T[:tokens], self.rise_T[:tokens])


def profile(entropy_T: Values, confidence_T: Values, group: int, tail: int, before: int) -> Profile:
    """Windows end at their token and are shorter at the path's start; the first token has no rise."""
    rise = np.zeros(len(entropy_T))
    rise[1:] = entropy_T[1:] - _means(entropy_T, before)[:-1]
    return Profile(entropy_T, _means(confidence_T, group), _means(confidence_T, tail), rise)


def _means(values_T: Values, window: int) -> Values:
    """Mean of the last `window` values at each."""
    first = values_T[: window - 1].cumsum() / np.arange(1, min(window - 1, len(values_T)) + 1)
    if len(values_T) < window:
        return np.asarray(first)
    # not by differences of sums: equal windows must have equal means, as falling is strict
    count = len(values_T) - window + 1
    return np.concatenate([first, sum(values_T[i : i + count] for i in range(window)) / window])


@dataclass(frozen=True, slots=True)
class Width:
    """Where a chain branches, and the width there. entropy_high, entropy_low and confidence: values, not quantiles."""

    entropy_high: float = 3.5
    entropy_low: float = 1.0
    confidence: float = 1.2
    rise: float = 0.2
    alpha: float = 2.0
    beta: float = 1.0
    least: int = 1
    most: int = 4

    def at(self, entropy: float, group: float) -> int:
        """clip(round(least + α·(H − low)/(high − low) − β·(Cg − θ)/|θ|), least, most)."""
        span = max(self.entropy_high - self.entropy_low, _LEAST)
        less = self.beta * (group - self.confidence) / max(abs(self.confidence), _LEAST)
        raw = self.least + self.alpha * (entropy - self.entropy_low) / span - less
        return int(np.clip(np.round(raw), self.least, self.most))

    def first(self, path: Profile, start: int, stop: int) -> int | None:
        """The first token in start..stop whose H is high, Cg low and rise large enough."""
        fires = (path.entropy_T >= self.entropy_high) & (path.group_T <= self.confidence) & (path.rise_T >= self.rise)
        found = np.flatnonzero(fires[start:stop])
        return start + int(found[0]) if len(found) else None


@dataclass(frozen=True, slots=True)
class Cuts:
    """When a path is cut: its group confidence is very low, its tail confidence keeps falling, or its entropy rising.

    start: tokens at the path's start after which it is never cut.
    """

    confidence: float = 0.4
    tail: float = 1.0
    rise: float = 0.5
    steps: int = 3
    start: int = 0

    def first(self, path: Profile) -> tuple[int, str] | None:
        """The first token after which to cut, and why."""
        falls = np.concatenate([np.zeros(1, np.bool_), np.diff(path.tail_T) < 0])[: len(path)]
        rules = (
            ("low_confidence", path.group_T < self.confidence),
            ("tail_decline", _in_a_row(falls, self.steps) & (path.tail_T <= self.tail)),
            ("entropy_spike", _in_a_row(path.rise_T > 0, self.steps) & (path.rise_T > self.rise)),
        )
        late = [(reason, fires[self.start :]) for reason, fires in rules]
        found = [(self.start + int(fires.argmax()), reason) for reason, fires in late if fires.any()]
        return min(found, key=lambda cut: cut[0], default=None)


def _in_a_row(holds_T: Bools, times: int) -> Bools:
    """Where it holds, and did at the times − 1 tokens before."""
    counts = np.concatenate([np.zeros(times, np.int64), holds_T.cumsum()])
    return np.asarray(counts[times:] - counts[:-times] == times)
