"""Rollouts, a helper of tree policies (not a method): paths that fork at any token of others.

A rollout's ordinal is its number in the tree, wherever it forks. So no two take the same place, no
place depends on the order in which rollouts end, and a resumed tree requests exactly the missing
rollouts. Ordinal 0 belongs to the first rollout, which starts at the prompt, and to continuations
of cut segments: they never meet.
"""

from dataclasses import dataclass

from banyan.plugins import Branch
from banyan.signals import NO_SIGNALS, Wanted
from methods.generate.coroutine_policy import Growth, Place
from methods.generate.cuts import Run


@dataclass(frozen=True, slots=True)
class Rollout:
    """Path that was sampled to its end from a branch.

    branch: place of its first token
    start: policy tokens of the path before the branch
    run: its segments
    """

    branch: Branch
    start: int
    run: Run

    @property
    def stop(self) -> int:
        """Policy tokens of the path."""
        return self.start + len(self.run)

    def place(self, position: int) -> Place:
        """Return the place to sample the token at a position of the path again.

        The place of its first own token is its branch.
        """
        if position == self.start:
            return self.branch.parent, self.branch.fork
        at = position - self.start
        for piece in self.run.pieces:
            if at <= len(piece):
                return piece.id, at
            at -= len(piece)
        raise AssertionError(
            f"position {position} is not among the tokens {self.start}..{self.stop} of a rollout"
        )


async def roll_out(
    growth: Growth, number: int, place: Place, start: int, signals: Wanted = NO_SIGNALS
) -> Rollout:
    """Sample a rollout behind `start` policy tokens to its end."""
    branch = Branch(*place, number)
    return Rollout(branch, start, await growth.path(branch, start, signals))
