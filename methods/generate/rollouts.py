"""Rollouts that fork from each other at any token: what the policies grow that branch from finished paths.

A rollout's ordinal is its number in the tree, wherever it forks. So no two take the same place, no place depends on which
rollout ended first, and a resumed tree asks for exactly the rollouts that are missing. Ordinal 0 is that of the first
rollout, which starts at the prompt, and of what continues a cut segment: they never meet.
"""

from dataclasses import dataclass

from banyan.plugins import Branch
from banyan.signals import NO_SIGNALS, Wanted
from methods.generate.coroutine_policy import Growth, Place
from methods.generate.cuts import Run


@dataclass(frozen=True, slots=True)
class Rollout:
    """A path that was sampled to its end from `branch`, which lies behind `start` policy tokens."""

    branch: Branch
    start: int
    run: Run

    @property
    def stop(self) -> int:
        """Policy tokens of the path."""
        return self.start + len(self.run)

    def place(self, position: int) -> Place:
        """Where the token at a position of the path is sampled again. Its first own token's place is its branch."""
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
    """A rollout behind `start` policy tokens, when it is sampled to its end."""
    branch = Branch(*place, number)
    return Rollout(branch, start, await growth.path(branch, start, signals))
