"""scope: independent samples; failed ones that are right for most of their length are repaired.

Paper: SCOPE, arXiv 2602.24110
Formula: a failed sample is repaired from its first wrong step e of T if (e − 1)/T ≥ ρ_min
Left out: the process reward model and its teacher, in whose place a scorer gives the correction

N independent samples are drawn and scored. A capable scorer names the first wrong step of a wrong
sample, and its correction. The path is kept up to that step, the correction is put in (FORCED,
origin TEACHER: the loss decides what is learned of it), and the policy continues to the end. A
repair that is right takes the place of the failed sample in the group; one that is wrong leaves the
group as it was. The wrong branch stays in the tree beside its repair.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from banyan.plugins import Branch, Expansion, Repaired, checks
from banyan.segment import Origin
from banyan.tree import Leaf
from methods.generate.coroutine_policy import Growing, Growth
from methods.generate.cuts import upto


@dataclass(frozen=True)
class Scope(Growing):
    """Independent samples with repairs of failed ones."""

    width: int = 8
    """G: samples of a group, and leaves of the tree in the end."""
    most: int = 2
    """m: failed samples of a prompt that are repaired at most."""
    least: float = 0.3
    """rho_min: share of a sample's steps that must be right before its first wrong one."""
    right: float = 0.5
    """Rewards of at least this count as right."""

    needs_scores = True
    forks_inside = True

    def __post_init__(self) -> None:
        checks.whole(self, ("width", "most"), 1)
        checks.finite(self, ("least", "right"))
        if not 0.0 <= self.least < 1.0:
            raise ValueError(f"least must be at least 0 and below 1, got {self.least!r}")

    async def grow(self, growth: Growth) -> None:
        """Sample all paths, and once they are scored, the repairs."""
        runs = [
            growth.start(growth.path(Branch(*growth.root, ordinal)))
            for ordinal in range(growth.width(self.width))
        ]
        leaves = [(await run).leaf for run in runs]
        rewards = [await growth.reward(leaf) for leaf in leaves]
        failed = [
            leaf
            for leaf, value in zip(leaves, rewards, strict=True)
            if value is not None and value < self.right
        ]
        for number, leaf in enumerate(self.chosen(failed, growth.view.repairs)):
            growth.start(self._repair(growth, leaf, growth.view.repairs[leaf], self.width + number))

    def chosen(self, failed: Sequence[Leaf], repairs: Mapping[Leaf, Repaired]) -> list[Leaf]:
        """Return the leaves to repair: those of the greatest right share first, ties in order."""
        # A repair of step 1 keeps nothing of the sample.
        repairable = [leaf for leaf in failed if leaf in repairs and repairs[leaf].step > 1]
        good = [leaf for leaf in repairable if share(repairs[leaf]) >= self.least]
        return sorted(good, key=lambda leaf: -share(repairs[leaf]))[: self.most]

    async def _repair(self, growth: Growth, failed: Leaf, repair: Repaired, ordinal: int) -> None:
        place, view = repair.place, growth.view
        before = view.tree.answer_length(place.segment, place.end)
        budget = view.max_path_tokens - before - len(repair.tokens)
        if budget < 1:
            return
        branch = Branch(place.segment, place.end, ordinal)
        run = await growth.run(
            Expansion(branch, upto(view.sampling, budget), repair.tokens, origin=Origin.TEACHER)
        )
        growth.end(run)
        value = await growth.reward(run.leaf)
        growth.drop(failed if value is not None and value >= self.right else run.leaf)


def share(repair: Repaired) -> float:
    """Return rho, the share of the steps before the first wrong one."""
    return (repair.step - 1) / repair.steps
