"""Scorers of leaves."""

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from banyan.plugins.ask import ASKERS
from banyan.recipe.part import Name, Part, Settings, Variable

_SMALLEST, _LARGEST = 0.001, 1000.0  # so that no reward is beyond what training bears


def _bounded(weight: float) -> float:
    if weight and not _SMALLEST <= math.fabs(weight) <= _LARGEST:
        raise PydanticCustomError(
            "weight",
            "{weight} must be 0, or between {smallest} and {largest}, or their negatives",
            {"weight": weight, "smallest": _SMALLEST, "largest": _LARGEST},
        )
    return weight


class Filter(Part):
    """A scorer of leaves."""

    LATER = frozenset(
        {"group", "weight", "deadline_s", "concurrency", "memory_mb", "network", "secrets"}
    )

    name: Name
    """Scorer: a registered name or module:function."""
    settings: Settings = {}
    """Settings of the scorer."""
    group: bool = False
    """module:function only: it scores all completions of a group together, `def reward(completions:
    list[str], **row)`."""
    weight: Annotated[float, AfterValidator(_bounded)] = 1.0
    """Weight in a leaf's reward, Σ w·value / Σ of the positive weights. 0: scored, kept and logged,
    but no part of the reward. Negative: a penalty, taken off the mean of the others. One must be
    above 0."""
    deadline_s: Annotated[float, Field(gt=0, le=3600)] | None = None
    """Wall-clock time of one score in a child process; null for the verifier's
    BANYAN_SCORE_TIMEOUT_S."""
    concurrency: Annotated[int, Field(ge=1, le=256)] | None = None
    """Scores by this scorer at once in one verifier; null for the verifier's BANYAN_CHILDREN."""
    memory_mb: Annotated[int, Field(ge=16, le=1_048_576)] | None = None
    """Memory of one score in a child process, in MB; null for the verifier's
    BANYAN_SCORE_MEMORY_MB."""
    network: bool = False
    """True if it may use the network, as `judge` must; the verifier's operator has to allow it, too
    (BANYAN_SANDBOX_NETWORK=1). Only `judge` and module:function can."""
    secrets: Annotated[list[Variable], Field(max_length=16)] = []
    """Environment variables of the verifier that it gets: `judge` the key of its endpoint,
    module:function all. The operator has to allow each (BANYAN_SCORER_SECRETS)."""

    @model_validator(mode="after")
    def _reaching(self) -> "Filter":
        asks = self.name in ASKERS
        if (self.network or self.secrets) and not asks and ":" not in self.name:
            raise ValueError(
                f"{self.name} uses no network and no secrets: leave both out, they are for "
                f"{', '.join(ASKERS)} and module:function"
            )
        if asks and not self.network:
            raise ValueError(f"{self.name} asks the address base_url: set network: true")
        if asks and len(self.secrets) > 1:
            raise ValueError(f"{self.name} takes one secret, the key of its endpoint")
        return self


def _some_counts(scorers: list[Filter]) -> list[Filter]:
    names = [scorer.name for scorer in scorers]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise PydanticCustomError(
            "twice", "scorer {name} stands twice; lineage knows it by its name", {"name": twice}
        )
    if scorers and max(scorer.weight for scorer in scorers) <= 0:
        raise PydanticCustomError(
            "weights", "no scorer has a weight above 0, so that no leaf would have a reward"
        )
    return scorers


Filters = Annotated[list[Filter], AfterValidator(_some_counts)]


def weights(scorers: Sequence[Filter]) -> list[float]:
    """Return the weights of scorers, in their order; none if all are equal."""
    each = [scorer.weight for scorer in scorers]
    return each if len(set(each)) > 1 else []
