"""Settings of the parts of all losses but dpo: aggregation, importance, rejection, KL."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from banyan.plugins import checks
from banyan.segment import Origin

MODES = (
    "token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-sum-const",
)
_CONSTANT = MODES[3:]
LEVELS = ("token", "sequence")
BOUNDS = ("truncate", "mask")
STATISTICS = ("k1", "k2", "k3")
OVER = ("token", "worst", "sum", "mean")
ESTIMATORS = ("k1", "k2", "k3", "k3+")
OLD = ("sampled", "proximal", "behaviour")
FORCED = ("policy", "shaped")


@dataclass(frozen=True)
class Aggregate:
    """Aggregation of token losses.

    mode: token-mean: Σ l / tokens. seq-mean-token-mean: mean over paths of their mean.
        seq-mean-token-sum: mean over paths of their sum. seq-mean-token-sum-norm: Σ l / `length`, a
        constant (Dr. GRPO). seq-mean-token-sum-const: mean over paths of their sum / `length`
        (TRL's form of it).
    length: the constant of the last two modes, tokens
    count: weight of a token that several paths share. paths: once for each path. nodes: once, with
        the mean of the loss over its paths; with an advantage per node that is the node's loss.
        seq-mean-token-mean is then refused, as the mean of a path has no meaning.
    count_silent: whether the tokens and paths of groups that teach nothing count in means, with a
        loss of 0, as in GRPO's code of TRL and verl. An update is then the smaller, the fewer
        groups of its batch teach; else it is as large as if they were the whole batch.
    """

    mode: str = "token-mean"
    length: int = 0
    count: str = "paths"
    count_silent: bool = False

    def __post_init__(self) -> None:
        _known("mode", self.mode, MODES)
        if self.mode in _CONSTANT and self.length < 1:
            raise ValueError(
                f"mode {self.mode} needs `length`, a constant of at least 1 (got {self.length})"
            )
        if self.count_silent and self.mode == "seq-mean-token-sum-norm":
            raise ValueError(
                f"mode {self.mode} divides by a constant, not by what is counted; leave"
                " count_silent out"
            )
        if self.count not in ("paths", "nodes"):
            raise ValueError(f"count {self.count!r} must be paths or nodes")
        if self.count == "nodes" and self.mode == "seq-mean-token-mean":
            raise ValueError(
                "count nodes counts a token once, mode seq-mean-token-mean once a path; use "
                "token-mean"
            )


@dataclass(frozen=True)
class Importance:
    """Importance weights.

    level: token: a weight for each token. sequence: one for each path, the product of its tokens'.
    bound: weights beyond `cap` or `floor` are brought back to it (truncate) or become 0 (mask)
    cap, floor: bounds of a weight; 0 for none
    normalise: whether weights are divided by their mean over the batch
    """

    level: str = "sequence"
    bound: str = "truncate"
    cap: float = 2.0
    floor: float = 0.0
    normalise: bool = False

    def __post_init__(self) -> None:
        _known("level", self.level, LEVELS)
        _known("bound", self.bound, BOUNDS)
        if self.cap < 0 or self.floor < 0 or (self.cap and self.floor > self.cap):
            raise ValueError(
                f"floor {self.floor} and cap {self.cap} must be ordered, at least 0, and 0 for none"
            )


# Defaults of a statistic: over, low, high.
_REJECTED = {
    "k1": ("sum", 0.5, 2.0),
    "k2": ("mean", 0.0, 0.01),
    "k3": ("mean", 0.0, 0.01),
}


@dataclass(frozen=True)
class Rejection:
    """Rejection of tokens or paths by the distance between sampling and training.

    by: k1: the ratio itself. k2: half the squared log-ratio. k3: e^d − d − 1.
    over: token: each token by itself. worst, sum, mean: a path by its worst token, by its sum (k1:
        the ratio of the path) or by its mean (k1: the geometric mean). Empty for the statistic's
        own.
    low, high: bounds of k1; k2 and k3 are never below 0 and have `high` alone

    Defaults depend on the statistic (Liu et al. 2025, Rollout Correction in verl): with k1 the
    ratio of a path lies in 0.5..2, with k2 and k3 a path's mean is at most 0.01.
    """

    by: str = "k1"
    over: str = ""
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        _known("reject.by", self.by, STATISTICS)
        _known("reject.over", self.unit, OVER)
        low, high = self.bounds
        checks.like("reject.low", low, 0.0)
        checks.like("reject.high", high, 0.0)
        if self.by != "k1" and low:
            raise ValueError(
                f"reject.low {low} is a bound of the ratio, by k1; {self.by} is never below 0, so "
                "leave low out"
            )
        if high <= 0:
            raise ValueError(f"reject.high {high} must be above 0")
        if not 0 <= low < high:
            raise ValueError(
                f"reject.low {low} and reject.high {high} must be ordered and at least 0"
            )

    @property
    def unit(self) -> str:
        """Unit of rejection: `over` if set, else the statistic's own."""
        return self.over or _REJECTED[self.by][0]

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and largest value that is kept."""
        _, low, high = _REJECTED[self.by]
        return low if self.low is None else self.low, high if self.high is None else self.high


@dataclass(frozen=True)
class Kl:
    """Penalty on the KL divergence from the reference.

    coef: factor of the estimate
    estimator: k1, k2, k3 or k3+
    where: loss: added to each token's loss. reward: the sum over a leaf's path, at the log-probs
        that it was sampled with, is subtracted from the leaf's reward.
    by_ratio: in the loss, whether the estimate is multiplied by the ratio
    """

    coef: float = 0.001
    estimator: str = "k3"
    where: str = "loss"
    by_ratio: bool = False

    def __post_init__(self) -> None:
        if self.coef <= 0:
            raise ValueError(f"kl.coef {self.coef} must be above 0; leave kl out for none")
        _known("kl.estimator", self.estimator, ESTIMATORS)
        if self.where not in ("loss", "reward"):
            raise ValueError(f"kl.where {self.where!r} must be loss or reward")
        if self.by_ratio and self.where == "reward":
            raise ValueError("kl.by_ratio is for kl.where loss")


@dataclass(frozen=True)
class Composed:
    """Loss made of a surrogate and parts.

    old: policy that ratios are taken to (Tokens.old); by default proximal with importance weights,
        else sampled
    forced: origin → loss of its tokens. policy: as if the policy had sampled them. shaped: −A π /
        (π + shaping) without a ratio (LUFFY, Yan et al. 2025, arXiv 2504.14945). Other origins are
        context.
    entropy: factor of the entropy bonus
    shaping: constant of `shaped`
    """

    surrogate: Any
    aggregate: Aggregate = field(default_factory=Aggregate)
    old: str = ""
    importance: Importance | None = None
    reject: Rejection | None = None
    kl: Kl | None = None
    entropy: float = 0.0
    forced: Mapping[str, str] = field(default_factory=dict)
    shaping: float = 0.1

    def __post_init__(self) -> None:
        if self.old not in ("", *OLD):
            raise ValueError(f"old {self.old!r} must be one of {', '.join(OLD)}")
        if self.importance and self.old in ("sampled", "behaviour"):
            raise ValueError(
                f"old {self.old} corrects for sampling already; with `importance` leave it out, or "
                "set proximal"
            )
        if self.old and not getattr(self.surrogate, "uses_ratio", True):
            raise ValueError("there is no ratio, so no `old` either; leave it out")
        if self.shaping <= 0:
            raise ValueError(f"shaping {self.shaping} must be above 0")
        for origin, how in self.forced.items():
            if (
                origin.upper() not in Origin.__members__
                or origin.upper() == "NONE"
                or how not in FORCED
            ):
                known = ", ".join(o.name.lower() for o in Origin if o)
                raise ValueError(
                    f"forced {origin}: {how!r} must be an origin ({known}) with one of "
                    f"{', '.join(FORCED)}"
                )


def _known(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} {value!r} must be one of {', '.join(known)}")
