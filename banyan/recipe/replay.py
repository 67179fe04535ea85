"""Groups that are trained on again."""

from typing import Annotated

from pydantic import Field, model_validator

from banyan.recipe.part import Name, Part, Settings, Steps


class Replay(Part):
    """Groups that a batch trains on again, beside its own. Needs a loss that corrects for the
    policy that sampled."""

    policy: Name = "dots"
    """Rule that draws groups: a registered name or module:attribute. dots: groups with right and
    wrong leaves. recent: any."""
    settings: Settings = {}
    """Settings of the policy."""
    fraction: Annotated[float, Field(ge=0.0, le=0.99)] = 0.0
    """Share of a batch's groups that are replayed, as far as stored; groups_per_batch counts the
    fresh ones."""
    capacity: Annotated[int, Field(ge=1, le=100_000)] = 512
    """Groups that are drawn from: the newest ones, one per row (DOTS + RR: 512)."""
    rescue: bool = False
    """Puts the newest stored success of a row in the place of the oldest leaf, in a group whose
    leaves all fail."""
    right: float = 0.5
    """rescue: rewards of at least this count as successes."""
    max_age: Steps = 0
    """Batches after which a tree is not replayed any more; 0 for no limit."""

    @model_validator(mode="after")
    def _something(self) -> "Replay":
        if not self.fraction and not self.rescue:
            raise ValueError(
                "replay replays nothing: set fraction above 0, or rescue: true, or leave replay out"
            )
        return self
