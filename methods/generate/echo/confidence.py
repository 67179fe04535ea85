"""Numbers of echo: entropy and confidence of tokens, their windows, branch and cut rules.

All numbers are of the K likeliest tokens, renormalised (ECHO, arXiv 2602.02150). There are two
measures of confidence C: `mean_probability`, the mean of the k largest probabilities (in 0..1/k),
and `neg_mean_log`, minus the mean of their logarithms (at least ln k).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

MEASURES = ("mean_probability", "neg_mean_log")
_LEAST = 1e-9  # least probability in logarithms
Values = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Cut = tuple[int, str]  # last token before the cut, and the reason


def entropy_and_confidence(
    top_logprobs_T_K: npt.ArrayLike, k: int, measure: str
) -> tuple[Values, Values]:
    """Return H and C of each token."""
    logprobs = np.asarray(top_logprobs_T_K, np.float64)
    p = np.exp(logprobs - logprobs.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    logs = np.log(np.maximum(p, _LEAST))
    likeliest = slice(0, min(k, p.shape[1]))
    of = p if measure == "mean_probability" else logs
    c = np.add.reduce(of[:, likeliest], 1) / of[:, likeliest].shape[1]
    return -np.add.reduce(p * logs, 1), c if measure == "mean_probability" else -c


@dataclass(frozen=True, eq=False, slots=True)
class Profile:
    """H and C along a path.

    entropy_T: H of each token
    group_T: mean C over the group window
    tail_T: mean C over the tail window
    rise_T: H minus the mean H of the tokens before
    """

    entropy_T: Values
    group_T: Values
    tail_T: Values
    rise_T: Values

    def __len__(self) -> int:
        return len(self.entropy_T)

    def first(self, tokens: int) -> "Profile":
        """Return the profile of the path's first tokens."""
        return Profile(
            self.entropy_T[:tokens],
            self.group_T[:tokens],
            self.tail_T[:tokens],
            self.rise_T[:tokens],
        )


def profile(entropy_T: Values, confidence_T: Values, group: int, tail: int, before: int) -> Profile:
    """Return the profile of a path.

    Windows end at their token and are shorter at the path's start; the first token has no rise.
    """
    rise = np.zeros(len(entropy_T))
    rise[1:] = entropy_T[1:] - _means(entropy_T, before)[:-1]
    return Profile(entropy_T, _means(confidence_T, group), _means(confidence_T, tail), rise)


def _means(values_T: Values, window: int) -> Values:
    """Return the mean of the last `window` values at each."""
    before = np.zeros(window - 1 + len(values_T))
    before[window - 1 :] = values_T
    # Sums of values, not differences of sums: equal windows must have equal means, as the test for
    # falling is strict.
    means = before[: len(values_T)].copy()
    for back in range(1, window):
        means += before[back : back + len(values_T)]
    means /= _counts(window, len(values_T))
    return means


@lru_cache(64)
def _counts(window: int, tokens: int) -> Values:
    """Return the number of values in each window."""
    return np.asarray(np.minimum(np.arange(1.0, tokens + 1), window), np.float64)


def quantiles(values_T: Values, levels: Sequence[float]) -> list[float]:
    """Return quantiles, interpolated between the nearest two values.

    They equal those of `np.quantile` to the last bit, which takes ten times as long.
    """
    ordered = np.sort(values_T).tolist()
    results: list[float] = []
    for level in levels:
        at = (len(ordered) - 1) * level
        below = int(at)
        low = ordered[below]
        high = ordered[min(below + 1, len(ordered) - 1)]
        share = at - below
        # Interpolate from the nearer end, as np.quantile does.
        if share < 0.5:
            results.append(low + (high - low) * share)
        else:
            results.append(high - (high - low) * (1 - share))
    return results


@dataclass(frozen=True, slots=True)
class Width:
    """Rule for the place and the width of a chain's branch.

    entropy_high, entropy_low, confidence: values, not quantiles
    """

    entropy_high: float = 3.5
    entropy_low: float = 1.0
    confidence: float = 1.2
    rise: float = 0.2
    alpha: float = 2.0
    beta: float = 1.0
    least: int = 1
    most: int = 4

    def at(self, entropy: float, group: float) -> int:
        """Return clip(round(least + α·(H − low)/(high − low) − β·(Cg − θ)/|θ|), least, most)."""
        span = max(self.entropy_high - self.entropy_low, _LEAST)
        less = self.beta * (group - self.confidence) / max(abs(self.confidence), _LEAST)
        raw = self.least + self.alpha * (entropy - self.entropy_low) / span - less
        return min(max(round(raw), self.least), self.most)

    def first(self, path: Profile, start: int, stop: int) -> int | None:
        """Return the first token in start..stop whose H is high, Cg low and rise large enough."""
        fires = (
            (path.entropy_T >= self.entropy_high)
            & (path.group_T <= self.confidence)
            & (path.rise_T >= self.rise)
        )
        firing = np.flatnonzero(fires[start:stop])
        return start + int(firing[0]) if len(firing) else None


@dataclass(frozen=True, slots=True)
class Cuts:
    """Rules for cutting a path.

    confidence: group confidence below which a path is cut
    tail: largest tail confidence at which a falling one cuts
    rise: rise of H above which a rising entropy cuts
    steps: tokens in a row that count as falling or rising
    start: tokens at the path's start after which it is never cut
    """

    confidence: float = 0.4
    tail: float = 1.0
    rise: float = 0.5
    steps: int = 3
    start: int = 0

    def first(self, path: Profile) -> Cut | None:
        """Return the first token after which to cut, and the reason."""
        if len(path) <= self.start:
            return None
        falls = np.zeros(len(path), np.bool_)
        falls[1:] = path.tail_T[1:] < path.tail_T[:-1]
        rules = {
            "low_confidence": path.group_T < self.confidence,
            "tail_decline": _in_a_row(falls, self.steps) & (path.tail_T <= self.tail),
            "entropy_spike": _in_a_row(path.rise_T > 0, self.steps) & (path.rise_T > self.rise),
        }
        low, falling, rising = rules.values()
        at = self.start + int((low | falling | rising)[self.start :].argmax())
        return next(((at, reason) for reason, fires in rules.items() if fires[at]), None)


def _in_a_row(holds_T: Bools, times: int) -> Bools:
    """Return the mask of tokens where it holds, and did at the times − 1 tokens before."""
    runs = np.zeros(len(holds_T), np.bool_)
    last = holds_T[times - 1 :]
    for back in range(1, times):
        last = last & holds_T[times - 1 - back : -back]
    runs[times - 1 :] = last
    return runs
