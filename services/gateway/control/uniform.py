"""The uniform curriculum: every training row once per epoch, in an order drawn from the seed and the epoch."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from banyan.draws import key, uniforms


@dataclass(frozen=True, slots=True)
class Uniform:
    """Which row the k-th training group gets. Pure: the same k gives the same row in every process."""

    rows: int
    seed: int

    def row(self, ordinal: int) -> int:
        """Index of the row of group `ordinal`."""
        epoch, position = divmod(ordinal, self.rows)
        return int(_permutation(self.rows, self.seed, epoch)[position])


@lru_cache(maxsize=8)
def _permutation(rows: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    keys = np.full(rows, key(seed, "curriculum", epoch), np.uint64)
    return np.argsort(uniforms(keys, np.arange(rows, dtype=np.uint64)), kind="stable")
