"""Rollouts that fork from each other at any token: what the policies grow that branch from finished paths.

A rollout's ordinal is its number in the tree, wherever it forks. So no two take the same place, no place depends on which
rollout ended first, and a resumed tree asks for exactly the rollouts that are missing. Ordinal 0 is that of the first
rollout, which starts at the prompt, and of what continues a cut segment: they never meet.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from banyan.plugins import Branch, Expansion, GrowthView, LeafMark, Plan
from banyan.segment import Finish, Floats
from banyan.signals import NO_SIGNALS, Signals, Wanted, joined
from banyan.tree import Leaf
from services.rollout.generate.cuts import Run, continuations, run_at

Place = tuple[bytes, int]  # a segment, and how many of its tokens come before


@dataclass(frozen=True)
class Rollout:
    """A path that was sampled to its end from `branch`, which lies behind `start` policy tokens."""

    branch: Branch
    start: int
    run: Run

    @property
    def stop(self) -> int:
        """Policy tokens of the path."""
        return self.start + len(self.run)

    @cached_property
    def logprobs_T(self) -> Floats:
        """Behaviour log-probs of its own tokens."""
        return np.concatenate(self.run.logprobs)

    @cached_property
    def signals(self) -> Signals:
        """Signals of its own tokens."""
        return joined([piece.signals for piece in self.run.pieces])

    def place(self, position: int) -> Place:
        """Where the token at a position of the path is sampled again. Its first own token's place is its branch."""
        if position == self.start:
            return self.branch.parent, self.branch.fork
        at = position - self.start
        for piece in self.run.pieces:
            if at <= len(piece):
                return piece.id, at
            at -= len(piece)
        raise AssertionError(f"position {position} is not among the tokens {self.start}..{self.stop} of a rollout")


@dataclass(slots=True)
class Rollouts:
    """The rollouts of one tree as a plan replays them. What it asks for and marks adds up to the plan."""

    view: GrowthView
    wanted: Wanted = NO_SIGNALS
    expansions: list[Expansion] = field(default_factory=list)
    marks: list[LeafMark] = field(default_factory=list)

    @property
    def root(self) -> Place:
        """Where a rollout starts from the prompt."""
        return self.view.root.id, len(self.view.root)

    def grow(self, number: int, place: Place, start: int) -> Rollout | None:
        """Asks for a rollout behind `start` policy tokens, to its end; None while it is not there."""
        branch = Branch(*place, number)
        sampling = replace(self.view.sampling, max_new_tokens=self.view.max_path_tokens - start)
        self.expansions.append(Expansion(branch, sampling, (), self.wanted))
        run = run_at(self.view, branch)
        if run is None:
            return None
        reason = "stop" if run.last.finish is Finish.STOP else "length"
        self.marks.append(LeafMark(Leaf(run.last.id, len(run.last)), reason))
        return Rollout(branch, start, run)

    def plan(self, leaves: int) -> Plan:
        """All that was asked for so far; done when there are so many leaves."""
        rests = (replace(rest, signals=self.wanted) for rest in continuations(self.view))
        return Plan((*self.expansions, *rests), tuple(self.marks), done=len(self.marks) == leaves)


def whole_numbers(policy: object, **least: int) -> None:
    """Raises ValueError where a setting is not a whole number of at least so much."""
    for name, bound in least.items():
        value = getattr(policy, name)
        if type(value) is not int or value < bound:
            raise ValueError(f"{name} must be a whole number of at least {bound}, got {value!r}")
