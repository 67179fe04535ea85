"""dars: independent samples, with more in a second stage where few were right.

Paper: Yang et al. 2025, DARS, arXiv 2508.13755
Formula: ΔN = ⌈(P − N·S(u)) / S(u)⌉ for accuracy u < ½, S(u) = 2u(1−u), P = N·S(½)
Left out: the breadth half, large batches with several epochs, which are a recipe's settings

Stage 1 draws N independent samples. With accuracy u (0 counts as 0.5/N) their absolute advantages
sum to N·S(u), S(u) = 2u(1−u), or 2√(u(1−u)) if divided by their standard deviation. A prompt of
medium difficulty has P = N·S(½). Below one half, stage 2 adds ΔN = ⌈(P − N·S)/S⌉ samples (equal
treatment), or ⌈(2(1−u)·P − N·S)/S⌉ (hardness-weighted), up to N_max in all. It keeps successes and
failures. It waits for stage 1's scores; unscorable samples take no part in u.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from banyan.plugins import Branch, GrowthView, checks
from methods.generate.coroutine_policy import Growing, Growth

SCHEDULES = ("equal", "hardness")


@dataclass(frozen=True)
class Dars(Growing):
    """Difficulty-adaptive rollout sampling."""

    width: int = 8
    """N: samples of stage 1."""
    max_width: int = 32
    """N_max: samples of both stages at most; the paper takes 32 with `equal` and 64 with
    `hardness`."""
    schedule: str = "equal"
    """equal: every hard prompt is brought to the level of a medium one. hardness: harder ones
    above it."""
    standardised: bool = False
    """True if the recipe's estimator divides advantages by their standard deviation."""
    right: float = 0.5
    """Rewards of at least this count as right."""

    needs_scores = True
    acts = True

    def __post_init__(self) -> None:
        checks.whole(self, ("width", "max_width"), 1)
        checks.finite(self, ("right",))
        if self.max_width < self.width:
            raise ValueError(f"max_width must be at least width={self.width}, got {self.max_width}")
        if self.schedule not in SCHEDULES:
            raise ValueError(
                f"schedule must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}"
            )

    async def grow(self, growth: Growth) -> None:
        """Sample stage 1, and once it is scored, stage 2."""
        runs = [
            growth.start(growth.path(Branch(*growth.root, ordinal)))
            for ordinal in range(self.width)
        ]
        rewards = [await growth.reward((await run).leaf) for run in runs]
        count = self.width + self.more([r for r in rewards if r is not None])
        # Stage 2 may have begun before all scores came.
        begun = min(self.max_width, _begun(growth.view))
        for ordinal in range(self.width, max(count, begun)):
            growth.start(growth.path(Branch(*growth.root, ordinal)))

    def more(self, rewards: Sequence[float]) -> int:
        """Return ΔN for the rewards of stage 1."""
        if not rewards:
            return 0
        return extra(
            sum(r >= self.right for r in rewards) / len(rewards),
            width=self.width,
            max_width=self.max_width,
            schedule=self.schedule,
            standardised=self.standardised,
        )


def extra(accuracy: float, width: int, max_width: int, schedule: str, standardised: bool) -> int:
    """Return ΔN, the samples that stage 2 adds for an accuracy in stage 1."""
    if accuracy >= 0.5:
        return 0
    u = accuracy or 0.5 / width
    share = 2 * math.sqrt(u * (1 - u)) if standardised else 2 * u * (1 - u)
    peak = width if standardised else width / 2
    level = 2 * (1 - u) * peak if schedule == "hardness" else peak
    return min(max_width - width, math.ceil(round((level - width * share) / share, 9)))


def _begun(view: GrowthView) -> int:
    """Return the number of existing samples, whatever requested them."""
    children = view.tree.children.get(view.root.id, ())
    return 1 + max((child.ordinal for child in children), default=-1)
