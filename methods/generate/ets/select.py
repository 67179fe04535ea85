"""Selection of ets: an integer program of worth, needed nodes, and covered clusters.

Of N candidates with M unique ancestors in K clusters it keeps those that maximise Σ O_i x_i −
λ_b·(Σ_j y_j + Σ_i x_i)/(M + N) + (λ_d/K)·Σ_k z_k (Hooper et al. 2025, ETS, arXiv 2502.13575): x is
1 for a kept candidate, y for an ancestor of one, z for a cluster with one. At least one is kept. So
y and z follow from x, and only x is searched: exhaustively up to `EXACT` candidates; beyond, by the
best single change until none helps.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from methods.generate.ets.climb import ROUNDING, Problem, climbed

EXACT = 16
_FREE = -1e-4  # cost of a node at λ_b = 0, as in the published code: a little below 0
Bools = npt.NDArray[np.bool_]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Choice:
    """Candidates to choose from.

    worth: O of each
    ancestors: ancestors of each, with the root
    clusters: cluster of each; empty for no bonus
    cost: λ_b
    bonus: λ_d
    below_M_N: candidates below each ancestor
    members_K_N: candidates in each cluster
    """

    worth: Sequence[float]
    ancestors: Sequence[Sequence[Hashable]]
    clusters: Sequence[Hashable] = ()
    cost: float = 1.0
    bonus: float = 0.0
    below_M_N: Bools = field(init=False, repr=False)
    members_K_N: Bools = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if (
            not self.worth
            or len(self.ancestors) != len(self.worth)
            or len(self.clusters) not in (0, len(self.worth))
        ):
            raise ValueError(
                "each of at least one candidate needs a worth and its ancestors, and a cluster or "
                f"none: {len(self.worth)} worths, {len(self.ancestors)} ancestries, "
                f"{len(self.clusters)} clusters"
            )
        object.__setattr__(self, "below_M_N", _sets(self.ancestors, len(self.worth)))
        object.__setattr__(
            self, "members_K_N", _sets([(cluster,) for cluster in self.clusters], len(self.worth))
        )

    @property
    def prices(self) -> tuple[float, float]:
        """Cost of a node, and worth of a covered cluster."""
        cost = (self.cost or _FREE) / sum(self.below_M_N.shape)
        return cost, self.bonus / max(1, len(self.members_K_N))

    def values(self, kept_C_N: Bools) -> Values:
        """Return the objective of each of several sets of candidates; −∞ for the empty set."""
        kept = kept_C_N.astype(np.float32)
        nodes = kept.sum(axis=1) + (kept @ self.below_M_N.T.astype(np.float32) > 0).sum(axis=1)
        covered = (kept @ self.members_K_N.T.astype(np.float32) > 0).sum(axis=1)
        cost, bonus = self.prices
        value = kept_C_N @ np.array(self.worth, np.float64) - cost * nodes + bonus * covered
        return np.where(kept_C_N.any(axis=1), value, -np.inf)

    def value(self, kept_N: Bools) -> float:
        """Return the objective of one set."""
        return float(self.values(kept_N[None])[0])


def select(choice: Choice, most: int = EXACT) -> list[int]:
    """Return the indices of the candidates to keep.

    They are the best set, or a good one if there are more than `most` candidates.
    """
    kept = exact(choice) if len(choice.worth) <= most else greedy(choice)
    return [int(i) for i in np.flatnonzero(kept)]


def exact(choice: Choice) -> Bools:
    """Return the set of the highest objective; of equals, the one with the first candidates."""
    count = len(choice.worth)
    numbers = np.arange(2**count - 1, 0, -1)[:, None]
    sets = (numbers >> np.arange(count - 1, -1, -1) & 1).astype(bool)
    values = choice.values(sets)
    return np.asarray(sets[(values >= values.max() - ROUNDING).argmax()])


def greedy(choice: Choice) -> Bools:
    """Return the best of three climbs: from all, from the best one, and from the best family."""
    below, (cost, bonus) = choice.below_M_N, choice.prices
    own = np.array(choice.worth, np.float64) - cost
    worth = np.concatenate((np.full(len(below), -cost), np.full(len(choice.members_K_N), bonus)))
    problem = Problem.of(own, worth, np.concatenate((below, choice.members_K_N)), below)
    ends = np.array(climbed(problem))
    return np.asarray(ends[choice.values(ends).argmax()])


def _sets(groups: Sequence[Sequence[Hashable]], count: int) -> Bools:
    """Return, for each name, the mask of the candidates that name it."""
    names = {
        name: row
        for row, name in enumerate(dict.fromkeys(name for group in groups for name in group))
    }
    named = np.zeros((len(names), count), bool)
    for index, group in enumerate(groups):
        named[[names[name] for name in group], index] = True
    return named


def kv_tokens(paths: Sequence[Sequence[tuple[Hashable, int]]]) -> int:
    """Return the tokens of the unique nodes on paths of (node, tokens): the memory of a step."""
    return sum({node: tokens for path in paths for node, tokens in path}.values())
