"""Simulated training rows with success rates: a curriculum fills batches, and outcomes follow."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from banyan.draws import Draws
from banyan.plugins import Allocation, Budget, PromptStats
from services.gateway.allocation.history import History


class SimulatedRows:
    """Rows with a text and a success rate; every group is trained on."""

    def __init__(
        self,
        curriculum: Any,
        texts: Sequence[str],
        rates: Sequence[float],
        batch: int = 16,
        seed: int = 0,
    ) -> None:
        self.curriculum, self.texts, self.rates = curriculum, list(texts), list(rates)
        self.batch, self.seed = batch, seed
        self.history = History(getattr(curriculum, "right", 0.5))
        self.rng = np.random.default_rng(seed)
        self.allocations: list[Allocation] = []
        self.means: list[float] = []
        self.batches = 0

    def ask(self, ordinals: range) -> list[Allocation]:
        """Return the curriculum's allocations."""
        stats = PromptStats([{}] * len(self.texts), self.texts, self.history.stats)
        budget = Budget(ordinals, self.batches, self.batch, 1, 128, {"width": 8})
        return list(self.curriculum.allocate(stats, budget, Draws(self.seed)))

    def fill(self, count: int) -> list[Allocation]:
        """Allocate the next groups."""
        first = len(self.allocations)
        allocations = self.ask(range(first, first + count))
        for ordinal, allocation in enumerate(allocations, first):
            self.history.record_allocation(ordinal, allocation.row)
        self.allocations += allocations
        return allocations

    def step(self) -> None:
        """Fill, sample and train on a batch."""
        first = len(self.allocations)
        for place, allocation in enumerate(self.fill(self.batch)):
            width = allocation.settings.get("width", 8)
            rewards = (self.rng.random(width) < self.rates[allocation.row]).astype(float)
            lengths = self.rng.integers(1, 100, width)
            self.means.append(float(rewards.mean()))
            self.history.record_outcome(
                first + place, self.batches, rewards.tolist(), lengths.tolist()
            )
        self.batches += 1
