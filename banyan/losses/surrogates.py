"""Settings of the surrogates: what each loss has of its own. The learner's classes of the same names compute with them."""

from dataclasses import dataclass
from typing import ClassVar

PAIRS = ("best", "all")


def check_clip(low: float, high: float) -> None:
    """Raises ValueError for a range that is none."""
    if not 0 <= low <= 1:
        raise ValueError(f"clip_low {low} must lie in [0, 1]")
    if high < 0:
        raise ValueError(f"clip_high {high} must be at least 0")


@dataclass(frozen=True)
class PpoClip:
    """How far a ratio may leave 1 below and above, and the bounds for negative advantages (0 for none; a `delta` of 0 for
    the same as dual_clip)."""

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
    """The clip range of the path's ratio, which a mean over many tokens keeps near 1, and what the ratio is made over."""

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
    """The weight stays in 1 − clip_low .. 1 + clip_high. From a clip_low of 1 on it has no lower bound. By default it has
    none, and 5 as the upper one."""

    clip_low: float = 1.0
    clip_high: float = 4.0

    def __post_init__(self) -> None:
        check_clip(min(self.clip_low, 1.0), self.clip_high)


@dataclass(frozen=True)
class EchoClip:
    """The range of ε, its slope κ, the tail that confidence is measured over, and PPO's dual clip (0 for none)."""

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
    """None of its own."""

    uses_ratio: ClassVar[bool] = False


@dataclass(frozen=True)
class Otr:
    """kappa: the temperature of the draws over that of sampling. beta: what a draw earns that is not the label."""

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
    """beta: how far the policy may leave the reference. pairs: `best`, the best child with each that is worse; `all`, each
    child with each that is worse. margin: by how much the advantages must differ at least."""

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
