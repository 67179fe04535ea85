"""Made-up rollouts for previews of control: how often each row is answered right, and what its rollouts become. Seeded."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from banyan.draws import key
from banyan.text import ngrams

_SPREAD = 2.0  # standard deviation of the chances' logits


@dataclass(slots=True)
class Rollouts:
    """Independent rollouts: their rewards, and their lengths in tokens, which are no whole numbers here."""

    rewards: list[float] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)

    def add(self, others: "Rollouts") -> None:
        """Takes others in."""
        self.rewards += others.rewards
        self.lengths += others.lengths


class Chances:
    """Each row's chance of success, which stays. With prompts, it follows from where the prompt lies along the direction in
    which they differ most, so that rows that read alike have chances alike; else any row has any."""

    def __init__(self, seed: int, prompts: Sequence[str] = ()) -> None:
        self._seed, self._rng = seed, np.random.default_rng(key(seed, "preview"))
        self._places = _places(prompts) if len(set(prompts)) > 1 else []

    def of(self, row: int) -> float:
        """The chance of a row."""
        if self._places:
            place = self._places[row]
        else:
            place = float(np.random.default_rng(key(self._seed, "preview.chance", row)).normal())
        return 1.0 / (1.0 + math.exp(-_SPREAD * place))

    def rollouts(self, row: int, count: int, limit: int) -> Rollouts:
        """New rollouts of a row: right or wrong, and of a sixth of the limit's tokens on average; few reach it."""
        rewards = (self._rng.random(count) < self.of(row)).astype(float)
        lengths = np.minimum(limit, self._rng.exponential(limit / 6, count))
        return Rollouts(rewards.tolist(), lengths.tolist())


def _places(prompts: Sequence[str]) -> list[float]:
    vectors = np.stack([ngrams.embed(prompt) for prompt in prompts]).astype(float)
    vectors -= vectors.mean(axis=0)
    along = vectors @ np.linalg.svd(vectors, full_matrices=False)[2][0]
    spread = along.std()
    return [float(place) for place in along / spread] if spread > 0 else []
