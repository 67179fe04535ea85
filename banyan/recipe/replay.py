"""What is trained on again."""

from typing import Annotated

from pydantic import Field, model_validator

from banyan.recipe.part import Name, Part, Settings, Steps


class Replay(Part):
    """What a batch trains on again, beside its own groups. Needs a loss that corrects for the policy that sampled."""

    policy: Name = "dots"
    """Who draws groups: a registered name or module:attribute. dots: those of which some leaves fail. recent: any."""
    settings: Settings = {}
    """Settings of the policy."""
    fraction: Annotated[float, Field(ge=0.0, le=0.99)] = 0.0
    """Share of a batch's groups that are replayed, as far as they are stored; groups_per_batch counts the fresh ones."""
    capacity: Annotated[int, Field(ge=1, le=100_000)] = 512
    """Groups that are drawn from: the newest ones, one a row (card 41)."""
    rescue: bool = False
    """A group of which every leaf fails gets, in the place of its oldest one, the newest stored success of its row."""
    right: float = 0.5
    """rescue: rewards of at least this count as successes."""
    max_age: Steps = 0
    """Batches after which a tree is not replayed any more; 0 for never."""

    @model_validator(mode="after")
    def _something(self) -> "Replay":
        if not self.fraction and not self.rescue:
            raise ValueError(
                "replay replays nothing: set fraction above 0, or rescue: true, or leave replay out"
            )
        return self
