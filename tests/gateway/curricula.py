"""A curriculum that decides by facts, for tests: rows that failed come again at half the width."""

from collections.abc import Sequence
from dataclasses import dataclass

from banyan.draws import Draws
from banyan.plugins import Allocation, Budget, PromptStats


@dataclass(frozen=True)
class Again:
    """The rows in order; where the newest facts of a row are failures, it goes first."""

    beyond: int = 0  # breaks its word: a row that is not there

    def allocate(self, prompts: PromptStats, budget: Budget, rng: Draws) -> Sequence[Allocation]:
        """One for each ordinal."""
        failed = sorted(row for row, s in prompts.stats.items() if s.groups and s.groups[-1].mean == 0.0)
        fresh = [row for row in range(len(prompts.rows)) if row not in prompts.stats]
        chosen = (failed + fresh)[: len(budget.ordinals)]
        return [
            Allocation(row + self.beyond, 2 if row in failed else None, {"width": 4}, why=f"after {budget.batches} batches")
            for row in chosen
        ]
