"""A tree policy that scores a place inside each path, and a scorer that rewards skills (SAGE)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from banyan import facts
from banyan.plugins import Branch, Expansion, Scored
from methods.generate.coroutine_policy import Growing, Growth
from methods.generate.cuts import upto


@dataclass(frozen=True)
class TwoTasks(Growing):
    """Two tasks in a row on each path: the end of the first is scored, but no leaf of the tree."""

    width: int = 4
    tokens: int = 3
    gives: ClassVar[frozenset[str]] = frozenset({facts.INSIDE, facts.STEPS})
    needs_scores: ClassVar[bool] = True

    async def grow(self, growth: Growth) -> None:
        for ordinal in range(self.width):
            growth.start(self._chain(growth, Branch(*growth.root, ordinal)))

    async def _chain(self, growth: Growth, branch: Branch) -> None:
        sampling = upto(growth.view.sampling, self.tokens)
        first = await growth.run(Expansion(branch, sampling))
        growth.mark(first.leaf, "task 1")
        await growth.reward(first.leaf)
        growth.drop(first.leaf)
        growth.end(
            await growth.run(Expansion(Branch(first.leaf.segment, first.leaf.end, 0), sampling))
        )


def reward(completion: str, **row: Any) -> Scored:
    """Return 1 for every other text, so that paths differ; long texts have used a skill."""
    return Scored(float(sum(completion.encode()) % 2), {"used": float(len(completion) > 3)})
