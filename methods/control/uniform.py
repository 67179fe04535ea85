"""uniform: every training row once per epoch, in an order drawn from the seed and the epoch.

It uses no facts, so its decisions are not stored: the same ordinal gives the same row in every
process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from banyan.draws import Draws, key, uniforms
from banyan.plugins import Allocation, Budget, PromptStats


@dataclass(frozen=True)
class Uniform:
    """Rows in a drawn order."""

    fixed = True

    def allocate(self, prompts: PromptStats, budget: Budget, rng: Draws) -> Sequence[Allocation]:
        """Return the rows in their drawn order."""
        return [
            Allocation(row_of(len(prompts.rows), rng.seed, ordinal)) for ordinal in budget.ordinals
        ]


def row_of(rows: int, seed: int, ordinal: int) -> int:
    """Return the index of the row of group `ordinal`."""
    epoch, position = divmod(ordinal, rows)
    return int(_permutation(rows, seed, epoch)[position])


@lru_cache(maxsize=8)
def _permutation(rows: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    keys = np.full(rows, key(seed, "curriculum", epoch), np.uint64)
    return np.argsort(uniforms(keys, np.arange(rows, dtype=np.uint64)), kind="stable")
