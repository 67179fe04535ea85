"""A good set of ets's candidates where there are too many to try all sets: climbs by the best single change (card 37).

A change adds or drops a candidate, or all below an ancestor, for a branch often pays only as a whole; where none of these
helps, a candidate is swapped for another. What a change is worth follows from how many kept candidates each node and cluster
covers, and how many of these the change takes: both are kept from change to change, so that none is evaluated from nothing.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ROUNDING = 1e-12
_CHANGES = 100_000  # far more than any climb takes
Bools = npt.NDArray[np.bool_]
Values = npt.NDArray[np.float64]
Counts = npt.NDArray[np.float32]  # whole numbers: exact up to 2^24


@dataclass(frozen=True, slots=True)
class Problem:
    """Σ own_i x_i + Σ_j worth_j [something that j covers is kept], with at least one x: x says that a candidate is kept."""

    own_N: Values
    worth_J: Values
    covers_J_N: Counts
    groups_G_N: Values  # what a change adds or drops
    meets_G_J: Counts  # candidates that a group and j have in common
    met_G_J: Values  # 1 where there are any

    @classmethod
    def of(
        cls, own_N: Values, worth_J: Values, covers_J_N: Bools, families_M_N: Bools
    ) -> "Problem":
        """Groups are the candidates and the families, each set once. What covers the same is one, with the sum of its worth;
        what covers one candidate is part of that one's own worth."""
        sets = np.concatenate((np.eye(len(own_N), dtype=bool), families_M_N))
        groups = sets[_firsts(sets)[0]].astype(np.float64)
        at, same_J = _firsts(covers_J_N)
        covers_J_N, worth_J = (
            covers_J_N[at],
            np.asarray(np.bincount(same_J, worth_J, len(at)), np.float64),
        )
        alone_J = covers_J_N.sum(1) == 1
        own_N = own_N + worth_J[alone_J] @ covers_J_N[alone_J]
        covers, worth_J = covers_J_N[~alone_J].astype(np.float32), worth_J[~alone_J]
        largest = (
            max(np.abs(own_N).max(), np.abs(worth_J).max(initial=0.0)) or 1.0
        )  # so that rounding is far below ROUNDING
        own_N, worth_J = own_N / largest, worth_J / largest
        meets = groups.astype(np.float32) @ covers.T
        return cls(own_N, worth_J, covers, groups, meets, (meets > 0).astype(np.float64))


def _firsts(sets_X_N: Bools) -> tuple[list[int], list[int]]:
    """Where each distinct row stands first, and of each row, which of these it is."""
    known: dict[bytes, int] = {}
    same_X = [known.setdefault(row.tobytes(), len(known)) for row in np.packbits(sets_X_N, axis=1)]
    return [same_X.index(number) for number in range(len(known))], same_X


class Climb:
    """A set of candidates that gets better. count_J: how many of the kept ones j covers; both_G_J: those of a group."""

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
        """Until no change helps."""
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
        """Adds or drops the best group, if that helps."""
        problem, bare_J = self._problem, self._count_J == 0
        groups = problem.groups_G_N
        added_G = groups @ np.where(self.kept_N, 0.0, problem.own_N) + problem.met_G_J @ (
            problem.worth_J * bare_J
        )
        lost_G_J = (self._both_G_J == self._count_J) & ~bare_J
        dropped_G = (
            -(groups @ np.where(self.kept_N, problem.own_N, 0.0)) - lost_G_J @ problem.worth_J
        )
        dropped_G[groups @ self.kept_N == self.kept_N.sum()] = -np.inf  # one is kept at least
        better = np.concatenate((added_G, dropped_G))
        at = int(better.argmax())
        if better[at] <= ROUNDING:
            return False
        group = groups[at % len(groups)] > 0
        self._take(self.kept_N | group if at < len(groups) else self.kept_N & ~group)
        return True

    def _swap(self) -> bool:
        """Swaps the best two, if that helps."""
        problem, inside, outside = (
            self._problem,
            np.flatnonzero(self.kept_N),
            np.flatnonzero(~self.kept_N),
        )
        if not len(outside):
            return False
        lone, bare = self._count_J == 1, self._count_J == 0
        alone_J_N = problem.covers_J_N[lone]
        weighed_N_J = alone_J_N[:, inside].T * problem.worth_J[lone]
        gained = (
            problem.own_N[outside] + problem.worth_J[bare] @ problem.covers_J_N[bare][:, outside]
        )
        lost = problem.own_N[inside] + weighed_N_J.sum(1)
        better = (
            gained[None] - lost[:, None] + weighed_N_J @ alone_J_N[:, outside]
        )  # what the new one covers is not lost
        at = int(better.argmax())
        if better.flat[at] <= ROUNDING:
            return False
        kept_N = self.kept_N.copy()
        kept_N[inside[at // len(outside)]], kept_N[outside[at % len(outside)]] = False, True
        self._take(kept_N)
        return True


def climbed(problem: Problem) -> list[Bools]:
    """Where the climbs end that begin with all candidates, with the best one, and with the best family."""
    many, value_G = (
        len(problem.own_N),
        problem.groups_G_N @ problem.own_N + problem.met_G_J @ problem.worth_J,
    )
    groups = [np.ones(many, bool), problem.groups_G_N[int(value_G[:many].argmax())] > 0]
    if len(value_G) > many:
        groups.append(problem.groups_G_N[many + int(value_G[many:].argmax())] > 0)
    return [Climb(problem, start).climb() for start in groups]
