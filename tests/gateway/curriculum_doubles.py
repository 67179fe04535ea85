"""Curricula for tests: one that decides by facts, and some that break the contract."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from banyan.draws import Draws
from banyan.plugins import Allocation, Budget, PromptStats


@dataclass(frozen=True)
class Again:
    """The rows in order, but a row that failed last goes first, at half the width."""

    beyond: int = 0  # added to every row: breaks the contract

    def allocate(self, prompts: PromptStats, budget: Budget, rng: Draws) -> Sequence[Allocation]:
        """Return an allocation for each ordinal."""
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
    """A curriculum that breaks the contract in a chosen way."""

    way: str = "raise"

    def allocate(self, prompts: PromptStats, budget: Budget, rng: Draws) -> Any:
        """Return anything but allocations."""
        if self.way == "raise":
            return 1 // 0
        if self.way == "exit":
            raise SystemExit(3)
        if self.way == "hang":
            threading.Event().wait(20)
        answers = {
            "none": [None],
            "row": [Allocation("x")],  # type: ignore[arg-type]
            "bool": [Allocation(True)],
            "trees": [Allocation(0, trees=2.0)],  # type: ignore[arg-type]
            "settings": [Allocation(0, settings={"width": {1}})],
            "content": [Allocation(0, messages=({"role": "user", "content": 3},))],
            "surrogate": [Allocation(0, messages=({"role": "user", "content": "\ud800"},))],
            "start": [Allocation(0, settings={"start": 3})],
            "long": [Allocation(0, messages=({"role": "user", "content": "x" * 5_000_000},))],
        }
        return None if self.way == "nothing" else answers[self.way] * len(budget.ordinals)


class RudeFixed(Rude):
    """A rude curriculum that calls itself fixed: the same for every ordinal, in every process."""

    fixed = True


class Unclear(Again):
    """A curriculum whose limit is no number."""

    right = "x"
