"""The end of a run, and the measurements of its policy."""

from typing import Annotated

from pydantic import Field

from banyan.recipe.filter import Filters
from banyan.recipe.part import Part, Steps


class Budget(Part):
    """The end of the run."""

    steps: Annotated[int, Field(ge=1, le=10_000_000)] = 100
    """Optimizer steps."""
    minutes: Annotated[float, Field(gt=0, le=10_000_000)] | None = None
    """Wall-clock limit. After it nothing is begun; groups that were begun are trained on; the run
    is measured and succeeds with that cause, or fails if no step was done. None for no limit."""


class Eval(Part):
    """Measurements of the policy on the held-out rows, before and after the run."""

    LATER = frozenset({"filter"})

    samples: Annotated[int, Field(ge=0, le=1024)] = 4
    """Sampled answers per row at the recipe's temperature, beside the greedy one."""
    every: Steps = 0
    """Steps between evaluations during the run; 0 for none."""
    max_rows: Annotated[int, Field(ge=1, le=10_000_000)] = 1000
    """Most held-out rows that are measured, in order of row digest."""
    filter: Filters = []
    """Scorers of evaluations; empty for those of training. A run that trains on a vote must name
    scorers that know the truth."""
