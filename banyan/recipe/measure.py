"""The end of a run, and the measurements of its policy."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from banyan.recipe.filter import Filters
from banyan.recipe.part import Part, Settings, Steps


class Budget(Part):
    """The end of the run."""

    steps: Annotated[int, Field(ge=1, le=10_000_000)] = 100
    """Optimizer steps."""
    minutes: Annotated[float, Field(gt=0, le=10_000_000)] | None = None
    """Wall-clock limit. After it nothing is begun; groups that were begun are trained on; the run
    is measured and succeeds with that cause, or fails if no step was done. None for no limit."""


class Votes(Part):
    """Votes on the held-out rows: several answers a row, of which the one that wins counts."""

    policy: Literal["iid", "recipe"] = "iid"
    """Growth of a row's tree: `iid` for independent answers, `recipe` for the recipe's own tree
    policy, as a search at test time."""
    width: Annotated[int, Field(ge=2, le=1024)] | None = None
    """Answers of a row with policy `iid`; null for 16."""
    settings: Settings = {}
    """With policy `recipe`: settings of the tree policy that differ from those of
    `generate.settings`."""
    weight: Literal["none", "head"] = "none"
    """`none`: every answer counts alike. `head`: that vote, and one beside it in which each answer
    weighs as much as the last score of the policy's learned head on its path."""
    extract: Literal["number", "tag", "text"] | None = None
    """Form of the answers that are compared, as in scorer `majority`; null for that of the first
    scorer of evaluations that has one."""
    take: Literal["only", "last"] | None = None
    """Number that counts as an answer; null for that of the same scorer, or `only`."""

    @model_validator(mode="after")
    def _used(self) -> "Votes":
        if self.policy == "iid" and self.settings:
            raise ValueError(
                "eval.votes.settings are for policy: recipe; iid has width alone, so leave them out"
            )
        if self.policy == "recipe" and self.width is not None:
            raise ValueError(
                "eval.votes.width is for policy: iid; the recipe's own tree policy takes its width "
                "from eval.votes.settings, or from generate.settings"
            )
        return self


class Eval(Part):
    """Measurements of the policy on the held-out rows, before and after the run."""

    LATER = frozenset({"filter", "votes"})

    samples: Annotated[int, Field(ge=0, le=1024)] = 4
    """Sampled answers per row at the recipe's temperature, beside the greedy one."""
    every: Steps = 0
    """Steps between evaluations during the run; 0 for none."""
    max_rows: Annotated[int, Field(ge=1, le=10_000_000)] = 1000
    """Most held-out rows that are measured, in order of row digest."""
    filter: Filters = []
    """Scorers of evaluations; empty for those of training. A run that trains on a vote must name
    scorers that know the truth."""
    votes: Votes | None = None
    """Counts votes, too: accuracy of the answer that wins, beside that of a leaf drawn at random;
    none by default (`votes: {}` for one with defaults)."""
