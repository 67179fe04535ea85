"""Settings of the surrogates. The learner's classes of the same names compute with them."""

from dataclasses import dataclass
from typing import ClassVar

PAIRS = ("best", "all")


def check_clip(low: float, high: float) -> None:
    """Raise ValueError unless the clip range is valid."""
    if not 0 <= low <= 1:
        raise ValueError(f"clip_low {low} must lie in [0, 1]")
    if high < 0:
        raise ValueError(f"clip_high {high} must be at least 0")


@dataclass(frozen=True)
class PpoClip:
    """Clip range of a ratio, and bounds for negative advantages.

    clip_low, clip_high: distances from 1 below and above
    dual_clip: bound for negative advantages; 0 for none
    delta: the same for ratios above 1 + clip_high; 0 for the value of dual_clip
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 3.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        check_clip(self.clip_low, self.clip_high)
        for name in ("dual_clip", "delta"):
            value = getattr(self, name)
            if value and value <= 1 + self.clip_high:
                raise ValueError(f"{name} {value} must be above 1 + clip_high, or 0 for none")


@dataclass(frozen=True)
class Gspo:
    """Clip range of the path's ratio, which a mean over many tokens keeps near 1.

    over: definition of the path's ratio: mean or product of its tokens
    """

    MODE: ClassVar[str] = "seq-mean-token-mean"

    clip_low: float = 3e-4
    clip_high: float = 4e-4
    over: str = "mean"

    def __post_init__(self) -> None:
        check_clip(self.clip_low, self.clip_high)
        if self.over not in ("mean", "product"):
            raise ValueError(f"over {self.over!r} must be mean or product")


@dataclass(frozen=True)
class Cispo:
    """Bounds of the weight: 1 − clip_low .. 1 + clip_high.

    From a clip_low of 1 on there is no lower bound. The default has none, and 5 as the upper one.
    """

    clip_low: float = 1.0
    clip_high: float = 4.0

    def __post_init__(self) -> None:
        check_clip(min(self.clip_low, 1.0), self.clip_high)


@dataclass(frozen=True)
class EchoClip:
    """Clip range ε by confidence, and PPO's dual clip.

    eps_min, eps_max: range of ε
    kappa: slope κ
    tail: tokens over which confidence is measured
    dual_clip: bound for negative advantages; 0 for none
    """

    eps_min: float = 0.05
    eps_max: float = 0.2
    kappa: float = 4.0
    tail: int = 16
    dual_clip: float = 3.0

    def __post_init__(self) -> None:
        if not 0 <= self.eps_min <= self.eps_max <= 1:
            raise ValueError(
                f"eps_min {self.eps_min} and eps_max {self.eps_max} must be ordered within [0, 1]"
            )
        if self.tail < 1:
            raise ValueError(f"tail {self.tail} must be at least 1")
        if self.dual_clip and self.dual_clip <= 1 + self.eps_max:
            raise ValueError(f"dual_clip {self.dual_clip} must be above 1 + eps_max, or 0 for none")


@dataclass(frozen=True)
class Reinforce:
    """Surrogate without settings."""

    uses_ratio: ClassVar[bool] = False


@dataclass(frozen=True)
class Otr:
    """Settings of one-token rollouts.

    kappa: temperature of the draws over that of sampling
    beta: reward of a draw that is not the label
    """

    uses_ratio: ClassVar[bool] = False

    kappa: float = 1.3
    beta: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.kappa <= 100:
            raise ValueError(f"kappa {self.kappa} must be above 0 and at most 100")
        if not -1 <= self.beta < 1:
            raise ValueError(f"beta {self.beta} must lie in [-1, 1): the label earns 1")


@dataclass(frozen=True)
class Dpo:
    """Settings of direct preference optimisation on pairs of siblings.

    beta: strength of the pull to the reference
    pairs: best: the best child with each worse one. all: each child with each worse one.
    margin: least difference of the advantages
    """

    beta: float = 0.1
    pairs: str = "best"
    margin: float = 1e-6

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise ValueError(f"beta {self.beta} must be above 0")
        if self.pairs not in PAIRS:
            raise ValueError(f"pairs {self.pairs!r} must be one of {', '.join(PAIRS)}")
        if self.margin <= 0:
            raise ValueError(f"margin {self.margin} must be above 0")
