"""Rollouts that fork from each other at any token: what the policies grow that branch from finished paths.

A rollout's ordinal is its number in the tree, wherever it forks. So no two take the same place, no place depends on which
rollout ended first, and a resumed tree asks for exactly the rollouts that are missing. Ordinal 0 is that of the first
rollout, which starts at the prompt, and of what continues a cut segment: they never meet.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import TypeVar
from weakref import WeakKeyDictionary

from banyan.plugins import Branch, Expansion, GrowthView, LeafMark, Plan
from banyan.segment import Finish, Segment
from banyan.signals import NO_SIGNALS, Wanted
from banyan.tree import Leaf
from services.rollout.generate.cuts import Run, continuations, run_at

Place = tuple[bytes, int]  # a segment, and how many of its tokens come before
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


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
        raise AssertionError(f"position {position} is not among the tokens {self.start}..{self.stop} of a rollout")


def remembered(of: Callable[[Run, K], T]) -> Callable[[Run, K], T]:
    """Keeps what a function says of a run, which never changes, while its last segment lives: a plan replays its tree."""
    known: WeakKeyDictionary[Segment, dict[K, T]] = WeakKeyDictionary()

    def remembering(run: Run, key: K) -> T:
        answers = known.setdefault(run.last, {})
        if key not in answers:
            answers[key] = of(run, key)
        return answers[key]

    return remembering


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
        """A rollout behind `start` policy tokens; where it is not sampled to its end, it is asked for."""
        branch = Branch(*place, number)
        run = run_at(self.view, branch)
        if run is None:
            sampling = replace(self.view.sampling, max_new_tokens=self.view.max_path_tokens - start)
            self.expansions.append(Expansion(branch, sampling, (), self.wanted))
            return None
        reason = "stop" if run.last.finish is Finish.STOP else "length"
        self.marks.append(LeafMark(Leaf(run.last.id, len(run.last)), reason))
        return Rollout(branch, start, run)

    def plan(self, leaves: int) -> Plan:
        """All that is asked for; done when there are so many leaves."""
        rests = (replace(rest, signals=self.wanted) for rest in continuations(self.view))
        return Plan((*self.expansions, *rests), tuple(self.marks), done=len(self.marks) == leaves)


def whole_numbers(policy: object, **least: int) -> None:
    """Raises ValueError where a setting is not a whole number of at least so much."""
    for name, bound in least.items():
        value = getattr(policy, name)
        if type(value) is not int or value < bound:
            raise ValueError(f"{name} must be a whole number of at least {bound}, got {value!r}")
