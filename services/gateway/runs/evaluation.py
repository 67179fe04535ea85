"""The evaluations of a run: their labels, when each is due, and when it is over. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from banyan.recipe import Recipe

Kind = Literal["greedy", "sampled", "voted"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A measurement of one policy on the held-out rows, with one tree a row.

    when: before, after or step-N.
    kind: greedy, sampled or voted.
    step: the policy's step.
    """

    when: str
    kind: Kind
    step: int

    @property
    def label(self) -> str:
        return f"{self.when}-{self.kind}"


@dataclass(frozen=True, slots=True)
class Measured:
    """The state of an evaluation in the store.

    groups: groups opened.
    done: groups closed or dropped.
    scored: leaves with a value.
    """

    groups: int = 0
    done: int = 0
    scored: int = 0

    def over(self, rows: int) -> bool:
        """Return True if every row's tree is closed or dropped."""
        return self.groups >= rows and self.done >= rows

    def empty(self, rows: int) -> bool:
        """Return True if it is over and nothing could be scored: it has no value at all."""
        return self.over(rows) and not self.scored


def evaluations(recipe: Recipe, when: str, step: int) -> list[Evaluation]:
    """Return the evaluations of one policy: greedy, sampled if the recipe wants samples, and voted
    if it wants votes.
    """
    kinds: list[Kind] = ["greedy"]
    if recipe.eval.samples:
        kinds.append("sampled")
    if recipe.eval.votes is not None:
        kinds.append("voted")
    return [Evaluation(when, kind, step) for kind in kinds]


def measured_rows(recipe: Recipe, held_out: int) -> int:
    """Return the number of held-out rows in each evaluation; 0 means no evaluations."""
    return min(held_out, recipe.eval.max_rows)


def pending(
    wanted: list[Evaluation], measured: Mapping[str, Measured], rows: int
) -> list[Evaluation]:
    """Return the evaluations that are not over."""
    return [e for e in wanted if rows and not measured.get(e.label, Measured()).over(rows)]


def empty(
    wanted: list[Evaluation], measured: Mapping[str, Measured], rows: int
) -> list[Evaluation]:
    """Return the evaluations that are over without a single value."""
    return [e for e in wanted if rows and measured.get(e.label, Measured()).empty(rows)]


def barrier(recipe: Recipe, measured: Mapping[str, Measured], rows: int) -> int:
    """Return the first batch that must not be prepared yet.

    It is the step of the next pending evaluation, or the budget's end. Nothing beyond it is opened,
    so that the policy to be measured is the newest one until it has been measured.
    """
    every, steps = recipe.eval.every, recipe.budget.steps
    if not every:
        return steps
    # Evaluations are opened in order: those before the newest are over.
    opened = [step for step in map(_step_of, measured) if step]
    for step in range(max(opened, default=every), steps, every):
        wanted = evaluations(recipe, f"step-{step}", step)
        if pending(wanted, measured, rows) or empty(wanted, measured, rows):
            return step
    return steps


def _step_of(label: str) -> int:
    middle = label.removeprefix("step-").rsplit("-", 1)[0]
    return int(middle) if label.startswith("step-") and middle.isdigit() else 0
