"""A curriculum that decides by facts, for tests: rows that failed come again at half the width."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from banyan.draws import Draws
from banyan.plugins import Allocation, Budget, PromptStats


@dataclass(frozen=True)
class Again:
    """The rows in order; where the newest facts of a row are failures, it goes first."""

    beyond: int = 0  # breaks its word: a row that is not there

    def allocate(self, prompts: PromptStats, budget: Budget, rng: Draws) -> Sequence[Allocation]:
        """One for each ordinal."""
        failed = sorted(
            row for row, s in prompts.stats.items() if s.groups and s.groups[-1].mean == 0.0
        )
        fresh = [row for row in range(len(prompts.rows)) if row not in prompts.stats]
        chosen = (failed + fresh)[: len(budget.ordinals)]
        return [
            Allocation(
                row + self.beyond,
                2 if row in failed else None,
                {"width": 4},
                why=f"after {budget.batches} batches",
            )
            for row in chosen
        ]


@dataclass(frozen=True)
class Rude:
    """Breaks its word in the way it is told to."""

    way: str = "raise"

    def allocate(self, prompts: PromptStats, budget: Budget, rng: Draws) -> Any:
        """Anything but allocations."""
        if self.way == "raise":
            return 1 // 0
        if self.way == "exit":
            raise SystemExit(3)
        if self.way == "hang":
            threading.Event().wait(20)
        said = {
            "nothing": None,
            "none": [None],
            "row": [Allocation("x")],  # type: ignore[arg-type]
            "bool": [Allocation(True)],
            "trees": [Allocation(0, trees=2.0)],  # type: ignore[arg-type]
            "settings": [Allocation(0, settings={"width": {1}})],
            "content": [Allocation(0, messages=({"role": "user", "content": 3},))],  # type: ignore[dict-item]
            "surrogate": [Allocation(0, messages=({"role": "user", "content": "\ud800"},))],
            "start": [Allocation(0, settings={"start": 3})],
            "long": [Allocation(0, messages=({"role": "user", "content": "x" * 5_000_000},))],
        }[self.way]
        return said * len(budget.ordinals) if said else said


class RudeFixed(Rude):
    """The same for every ordinal, in every process."""

    fixed = True


class Unclear(Again):
    """Says what is no number."""

    right = "x"
