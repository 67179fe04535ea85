"""Which candidates of ets say the same: average linkage of their last steps' embeddings on cosine distance (card 37).

The two clusters with the smallest mean distance between their members are joined until that is more than `cut`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def clusters(embeddings_N_D: Sequence[Sequence[float]] | Floats, cut: float = 0.05) -> list[int]:
    """The cluster of each candidate, numbered in the order of their first members."""
    distance_N_N = cosine_distances(embeddings_N_D)
    groups = [[i] for i in range(len(distance_N_N))]
    while len(groups) > 1:
        pairs = [(_mean(distance_N_N, a, b), i, j) for i, a in enumerate(groups) for j, b in enumerate(groups[:i])]
        least, i, j = min(pairs)
        if least > cut:
            break
        groups[j] += groups.pop(i)
    groups.sort(key=min)
    named = {member: number for number, group in enumerate(groups) for member in group}
    return [named[i] for i in range(len(named))]


def cosine_distances(embeddings_N_D: Sequence[Sequence[float]] | Floats) -> Floats:
    """1 − cosine of each pair; an embedding of length 0 is at distance 1 from all."""
    given = np.asarray(embeddings_N_D, np.float64)
    length = np.linalg.norm(given, axis=1, keepdims=True)
    unit = given / np.where(length > 0, length, 1.0)
    return np.asarray(1.0 - unit @ unit.T)


def _mean(distance_N_N: Floats, a: Sequence[int], b: Sequence[int]) -> float:
    return float(distance_N_N[np.ix_(a, b)].mean())
