"""Which candidates ets keeps: a small integer program of their worth, the nodes that they need, and the clusters they cover.

Hooper et al. 2025, ETS, arXiv 2502.13575 (card 37). Of N candidates with M unique ancestors in K clusters it keeps those
that maximise Σ O_i x_i − λ_b·(Σ_j y_j + Σ_i x_i)/(M + N) + (λ_d/K)·Σ_k z_k: x says that a candidate is kept, y that one
below an ancestor is, z that one of a cluster is. At least one is kept. So y and z follow from x, and only x is searched:
all of it up to `EXACT` candidates; beyond, the best single change is taken until none helps.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from methods.generate.ets.climb import ROUNDING, Problem, climbed

EXACT = 16
_FREE = -1e-4  # what a node costs at λ_b = 0, as in the published code: a little less than nothing
Bools = npt.NDArray[np.bool_]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Choice:
    """Candidates to choose from: worth O, ancestors with the root, cluster (none: no bonus), λ_b and λ_d."""

    worth: Sequence[float]
    ancestors: Sequence[Sequence[Hashable]]
    clusters: Sequence[Hashable] = ()
    cost: float = 1.0
    bonus: float = 0.0
    below_M_N: Bools = field(init=False, repr=False)  # candidates below each ancestor
    members_K_N: Bools = field(init=False, repr=False)  # candidates in each cluster

    def __post_init__(self) -> None:
        if (
            not self.worth
            or len(self.ancestors) != len(self.worth)
            or len(self.clusters) not in (0, len(self.worth))
        ):
            sizes = f"{len(self.worth)} worths, {len(self.ancestors)} ancestries, {len(self.clusters)} clusters"
            raise ValueError(
                f"each of at least one candidate needs a worth and its ancestors, and a cluster or none: {sizes}"
            )
        object.__setattr__(self, "below_M_N", _sets(self.ancestors, len(self.worth)))
        object.__setattr__(
            self, "members_K_N", _sets([(cluster,) for cluster in self.clusters], len(self.worth))
        )

    @property
    def prices(self) -> tuple[float, float]:
        """What a node costs, and what a covered cluster is worth."""
        return (self.cost or _FREE) / sum(self.below_M_N.shape), self.bonus / max(
            1, len(self.members_K_N)
        )

    def values(self, kept_C_N: Bools) -> Values:
        """The objective of each of several sets of candidates; −∞ of the empty one."""
        kept = kept_C_N.astype(np.float32)
        nodes = kept.sum(axis=1) + (kept @ self.below_M_N.T.astype(np.float32) > 0).sum(axis=1)
        covered = (kept @ self.members_K_N.T.astype(np.float32) > 0).sum(axis=1)
        cost, bonus = self.prices
        value = kept_C_N @ np.array(self.worth, np.float64) - cost * nodes + bonus * covered
        return np.where(kept_C_N.any(axis=1), value, -np.inf)

    def value(self, kept_N: Bools) -> float:
        """The objective of one set."""
        return float(self.values(kept_N[None])[0])


def select(choice: Choice, most: int = EXACT) -> list[int]:
    """Indices of the candidates to keep: the best set, or a good one where there are more than `most`."""
    kept = exact(choice) if len(choice.worth) <= most else greedy(choice)
    return [int(i) for i in np.flatnonzero(kept)]


def exact(choice: Choice) -> Bools:
    """The set of the highest objective; of equals, the one that keeps the first candidates."""
    count = len(choice.worth)
    numbers = np.arange(2**count - 1, 0, -1)[:, None]
    sets = (numbers >> np.arange(count - 1, -1, -1) & 1).astype(bool)
    values = choice.values(sets)
    return np.asarray(sets[(values >= values.max() - ROUNDING).argmax()])


def greedy(choice: Choice) -> Bools:
    """The best of three climbs: from all candidates, from the best one, and from all below the best ancestor."""
    below, (cost, bonus) = choice.below_M_N, choice.prices
    own = np.array(choice.worth, np.float64) - cost
    worth = np.concatenate((np.full(len(below), -cost), np.full(len(choice.members_K_N), bonus)))
    ends = np.array(
        climbed(Problem.of(own, worth, np.concatenate((below, choice.members_K_N)), below))
    )
    return np.asarray(ends[choice.values(ends).argmax()])


def _sets(groups: Sequence[Sequence[Hashable]], count: int) -> Bools:
    """Which candidates are in each group that they name."""
    names = {
        name: row
        for row, name in enumerate(dict.fromkeys(name for group in groups for name in group))
    }
    found = np.zeros((len(names), count), bool)
    for index, group in enumerate(groups):
        found[[names[name] for name in group], index] = True
    return found


def kv_tokens(paths: Sequence[Sequence[tuple[Hashable, int]]]) -> int:
    """Tokens of the unique nodes on these paths, each given as (node, tokens): what a step keeps in memory."""
    return sum({node: tokens for path in paths for node, tokens in path}.values())
