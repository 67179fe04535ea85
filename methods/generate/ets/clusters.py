"""Clusters of ets's candidates by meaning: average linkage of the cosine distance of embeddings.

The embeddings are of the candidates' last steps. The two clusters with the smallest mean distance
between their members are joined until that distance exceeds `cut`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def clusters(embeddings_N_D: Sequence[Sequence[float]] | Floats, cut: float = 0.05) -> list[int]:
    """Return the cluster of each candidate, numbered in the order of their first members."""
    return linked(cosine_distances(embeddings_N_D), cut)


def linked(distance_N_N: Floats, cut: float) -> list[int]:
    """Return the clusters for given distances.

    Sums between clusters are kept, and added when two are joined, so a join costs one row. Of equal
    means the pair is joined whose later cluster has the smallest first member, then whose earlier
    one has.
    """
    sum_N_N = np.array(distance_N_N, np.float64)
    many = len(sum_N_N)
    # [later, earlier], each by its first member.
    mean_N_N = np.where(np.tri(many, k=-1, dtype=bool), sum_N_N, np.inf)
    size_N = np.ones(many)
    first_N = np.arange(many)
    for _ in range(many - 1):
        later, earlier = divmod(int(mean_N_N.argmin()), many)
        if mean_N_N[later, earlier] > cut:
            break
        first_N[first_N == later] = earlier
        size_N[earlier] += size_N[later]
        size_N[later] = np.inf  # joined, no cluster any more
        sum_N_N[earlier] += sum_N_N[later]
        sum_N_N[:, earlier] = sum_N_N[earlier]
        mean_N = np.where(
            np.isfinite(size_N), sum_N_N[earlier] / (size_N * size_N[earlier]), np.inf
        )
        mean_N_N[later], mean_N_N[:, later] = np.inf, np.inf
        mean_N_N[earlier, :earlier] = mean_N[:earlier]
        mean_N_N[earlier + 1 :, earlier] = mean_N[earlier + 1 :]
    return [int(number) for number in np.unique(first_N, return_inverse=True)[1]]


def cosine_distances(embeddings_N_D: Sequence[Sequence[float]] | Floats) -> Floats:
    """Return 1 − cosine of each pair; an embedding of length 0 is at distance 1 from all."""
    embeddings = np.asarray(embeddings_N_D, np.float64)
    length = np.linalg.norm(embeddings, axis=1, keepdims=True)
    unit = embeddings / np.where(length > 0, length, 1.0)
    return np.asarray(1.0 - unit @ unit.T)
