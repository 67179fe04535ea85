"""Made-up rollouts for previews of control: chances of success, rewards and lengths. Seeded."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from banyan.draws import key
from banyan.text import ngrams

_SPREAD = 2.0  # standard deviation of the chances' logits


@dataclass(slots=True)
class Rollouts:
    """Independent rollouts: their rewards, and their lengths in tokens, here not whole numbers."""

    rewards: list[float] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)

    def add(self, others: "Rollouts") -> None:
        """Append other rollouts."""
        self.rewards += others.rewards
        self.lengths += others.lengths


class Chances:
    """The constant chance of success of each row.

    With prompts it follows from the prompt's position along the direction in which prompts differ
    most, so that similar prompts have similar chances; without, it is drawn for each row.
    """

    def __init__(self, seed: int, prompts: Sequence[str] = ()) -> None:
        self._seed, self._rng = seed, np.random.default_rng(key(seed, "preview"))
        self._positions = _positions(prompts) if len(set(prompts)) > 1 else []

    def of(self, row: int) -> float:
        """Return the chance of a row."""
        if self._positions:
            position = self._positions[row]
        else:
            rng = np.random.default_rng(key(self._seed, "preview.chance", row))
            position = float(rng.normal())
        return 1.0 / (1.0 + math.exp(-_SPREAD * position))

    def rollouts(self, row: int, count: int, limit: int) -> Rollouts:
        """Return new rollouts of a row: right or wrong, on average a sixth of the limit long."""
        rewards = (self._rng.random(count) < self.of(row)).astype(float)
        lengths = np.minimum(limit, self._rng.exponential(limit / 6, count))
        return Rollouts(rewards.tolist(), lengths.tolist())


def _positions(prompts: Sequence[str]) -> list[float]:
    vectors = np.stack([ngrams.embed(prompt) for prompt in prompts]).astype(float)
    vectors -= vectors.mean(axis=0)
    along = vectors @ np.linalg.svd(vectors, full_matrices=False)[2][0]
    spread = along.std()
    return [float(position) for position in along / spread] if spread > 0 else []
