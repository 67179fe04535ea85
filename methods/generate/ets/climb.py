"""Greedy improvement of a set of ets's candidates, for more than an exhaustive search can try.

The set is improved by the best single change. A change adds or drops a candidate, or all below an
ancestor, as a branch often pays only as a whole; if none of these helps, a candidate is swapped for
another. The gain of a change follows from the number of kept candidates below each node and in each
cluster, and the number of these that the change removes: both are updated from change to change, so
that none is evaluated from scratch.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ROUNDING = 1e-12
_CHANGES = 100_000  # far more than any climb needs
Bools = npt.NDArray[np.bool_]
Values = npt.NDArray[np.float64]
Counts = npt.NDArray[np.float32]  # whole numbers: exact up to 2^24


@dataclass(frozen=True, slots=True)
class Problem:
    """Σ own_i x_i + Σ_j worth_j [any candidate that j covers is kept], with at least one x.

    own_N: gain of each candidate by itself
    worth_J: gain of each covering item
    covers_J_N: whether j covers a candidate
    groups_G_N: candidates that a change adds or drops
    meets_G_J: number of candidates that a group and j have in common
    met_G_J: 1 where there are any
    """

    own_N: Values
    worth_J: Values
    covers_J_N: Counts
    groups_G_N: Values
    meets_G_J: Counts
    met_G_J: Values

    @classmethod
    def of(
        cls, own_N: Values, worth_J: Values, covers_J_N: Bools, families_M_N: Bools
    ) -> "Problem":
        """Return the problem, with duplicates removed.

        Groups are the candidates and the families, each set once. Items that cover the same
        candidates become one, with the sum of their worth; an item that covers one candidate
        becomes part of that candidate's own worth.
        """
        sets = np.concatenate((np.eye(len(own_N), dtype=bool), families_M_N))
        groups = sets[_firsts(sets)[0]].astype(np.float64)
        at, same_J = _firsts(covers_J_N)
        covers_J_N = covers_J_N[at]
        worth_J = np.asarray(np.bincount(same_J, worth_J, len(at)), np.float64)
        alone_J = covers_J_N.sum(1) == 1
        own_N = own_N + worth_J[alone_J] @ covers_J_N[alone_J]
        covers, worth_J = covers_J_N[~alone_J].astype(np.float32), worth_J[~alone_J]
        # Scaled, so that errors of rounding are far below ROUNDING.
        largest = max(np.abs(own_N).max(), np.abs(worth_J).max(initial=0.0)) or 1.0
        meets = groups.astype(np.float32) @ covers.T
        return cls(
            own_N=own_N / largest,
            worth_J=worth_J / largest,
            covers_J_N=covers,
            groups_G_N=groups,
            meets_G_J=meets,
            met_G_J=(meets > 0).astype(np.float64),
        )


def _firsts(sets_X_N: Bools) -> tuple[list[int], list[int]]:
    """Return the first index of each distinct row, and for each row, the number of its kind."""
    known: dict[bytes, int] = {}
    same_X = [known.setdefault(row.tobytes(), len(known)) for row in np.packbits(sets_X_N, axis=1)]
    return [same_X.index(number) for number in range(len(known))], same_X


class Climb:
    """Set of candidates that improves.

    _count_J: number of kept candidates that j covers
    _both_G_J: number of these in a group
    """

    def __init__(self, problem: Problem, kept_N: Bools) -> None:
        self._problem = problem
        self.kept_N = np.zeros(len(kept_N), bool)
        self._count_J = np.zeros(len(problem.worth_J), np.float32)
        self._both_G_J = np.zeros_like(problem.meets_G_J)
        if 2 * int(kept_N.sum()) > len(kept_N):  # fewer to drop than to add
            self.kept_N[:] = True
            self._count_J[:] = problem.covers_J_N.sum(1)
            self._both_G_J[:] = problem.meets_G_J
        self._take(kept_N)

    def climb(self) -> Bools:
        """Improve the set until no change helps."""
        for _ in range(_CHANGES):
            if not (self._toggle() or self._swap()):
                break
        return self.kept_N

    def _take(self, kept_N: Bools) -> None:
        problem, changed = self._problem, np.flatnonzero(kept_N != self.kept_N)
        sign = np.where(kept_N[changed], np.float32(1), np.float32(-1))
        covers_J_C = problem.covers_J_N[:, changed] * sign
        self._count_J += covers_J_C.sum(1)
        self._both_G_J += problem.groups_G_N[:, changed].astype(np.float32) @ covers_J_C.T
        self.kept_N = kept_N

    def _toggle(self) -> bool:
        """Add or drop the best group; return whether that helped."""
        problem, bare_J = self._problem, self._count_J == 0
        groups = problem.groups_G_N
        added_G = groups @ np.where(self.kept_N, 0.0, problem.own_N) + problem.met_G_J @ (
            problem.worth_J * bare_J
        )
        lost_G_J = (self._both_G_J == self._count_J) & ~bare_J
        dropped_G = (
            -(groups @ np.where(self.kept_N, problem.own_N, 0.0)) - lost_G_J @ problem.worth_J
        )
        dropped_G[groups @ self.kept_N == self.kept_N.sum()] = -np.inf  # never drop all
        better = np.concatenate((added_G, dropped_G))
        at = int(better.argmax())
        if better[at] <= ROUNDING:
            return False
        group = groups[at % len(groups)] > 0
        self._take(self.kept_N | group if at < len(groups) else self.kept_N & ~group)
        return True

    def _swap(self) -> bool:
        """Swap the best two candidates; return whether that helped."""
        problem = self._problem
        inside = np.flatnonzero(self.kept_N)
        outside = np.flatnonzero(~self.kept_N)
        if not len(outside):
            return False
        lone, bare = self._count_J == 1, self._count_J == 0
        alone_J_N = problem.covers_J_N[lone]
        weighed_N_J = alone_J_N[:, inside].T * problem.worth_J[lone]
        gained = (
            problem.own_N[outside] + problem.worth_J[bare] @ problem.covers_J_N[bare][:, outside]
        )
        lost = problem.own_N[inside] + weighed_N_J.sum(1)
        # Items that the new candidate covers are not lost.
        better = gained[None] - lost[:, None] + weighed_N_J @ alone_J_N[:, outside]
        at = int(better.argmax())
        if better.flat[at] <= ROUNDING:
            return False
        kept_N = self.kept_N.copy()
        kept_N[inside[at // len(outside)]] = False
        kept_N[outside[at % len(outside)]] = True
        self._take(kept_N)
        return True


def climbed(problem: Problem) -> list[Bools]:
    """Return the ends of climbs from all candidates, the best one, and the best family."""
    count = len(problem.own_N)
    value_G = problem.groups_G_N @ problem.own_N + problem.met_G_J @ problem.worth_J
    starts = [np.ones(count, bool), problem.groups_G_N[int(value_G[:count].argmax())] > 0]
    if len(value_G) > count:
        starts.append(problem.groups_G_N[count + int(value_G[count:].argmax())] > 0)
    return [Climb(problem, start).climb() for start in starts]
