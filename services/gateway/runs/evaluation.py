"""Evaluations of a run: which there are, when each is due, and whether it is over. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from banyan.recipe import Recipe

Kind = Literal["greedy", "sampled"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One measurement of one policy on the held-out rows: one tree a row."""

    when: str  # before, after, step-N
    kind: Kind
    step: int

    @property
    def label(self) -> str:
        return f"{self.when}-{self.kind}"


@dataclass(frozen=True, slots=True)
class Measured:
    """How an evaluation stands in the store."""

    groups: int = 0  # opened
    done: int = 0  # closed or dropped
    scored: int = 0  # leaves with a value

    def over(self, rows: int) -> bool:
        """Whether every row's tree is closed or dropped."""
        return self.groups >= rows and self.done >= rows

    def empty(self, rows: int) -> bool:
        """Over, and nothing could be scored: the measurement has no value at all."""
        return self.over(rows) and not self.scored


def evaluations(recipe: Recipe, when: str, step: int) -> list[Evaluation]:
    """The evaluations of one policy: greedy, and sampled where the recipe wants samples."""
    kinds: list[Kind] = ["greedy", "sampled"] if recipe.eval.samples else ["greedy"]
    return [Evaluation(when, kind, step) for kind in kinds]


def measured_rows(recipe: Recipe, held_out: int) -> int:
    """Held-out rows that each evaluation measures; 0 means that there are no evaluations."""
    return min(held_out, recipe.eval.max_rows)


def pending(wanted: list[Evaluation], stand: Mapping[str, Measured], rows: int) -> list[Evaluation]:
    """Those that are not over."""
    return [e for e in wanted if rows and not stand.get(e.label, Measured()).over(rows)]


def empty(wanted: list[Evaluation], stand: Mapping[str, Measured], rows: int) -> list[Evaluation]:
    """Those that are over without a single value."""
    return [e for e in wanted if rows and stand.get(e.label, Measured()).empty(rows)]


def barrier(recipe: Recipe, stand: Mapping[str, Measured], rows: int) -> int:
    """The first batch that must not be prepared yet: the step of the next evaluation that is not over, or the budget's end.

    Nothing beyond it is opened, so that the policy to be measured is the newest one until it has been measured.
    """
    every, steps = recipe.eval.every, recipe.budget.steps
    # they are opened in order: those before are over
    opened = [e for e in (_step_of(label) for label in stand) if e]
    for step in range(max(opened, default=every), steps, every) if every else ():
        wanted = evaluations(recipe, f"step-{step}", step)
        if pending(wanted, stand, rows) or empty(wanted, stand, rows):
            return step
    return steps


def _step_of(label: str) -> int:
    middle = label.removeprefix("step-").rsplit("-", 1)[0]
    return int(middle) if label.startswith("step-") and middle.isdigit() else 0
