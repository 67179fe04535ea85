"""Choice of prompts, and how far sampling may run ahead."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from banyan.recipe.part import Name, Part, Settings


class Control(Part):
    """Choice of prompts, and how far sampling may run ahead."""

    LATER = frozenset(
        {
            "curriculum",
            "curriculum_settings",
            "redundancy",
            "redundancy_debias",
            "stale_groups",
            "rooms",
            "rooms_settings",
        }
    )

    groups_per_batch: Annotated[int, Field(ge=1, le=100_000)] = 8
    """Groups (one prompt row each) that a batch takes."""
    max_staleness: Annotated[int, Field(ge=0, le=1000)] = 0
    """Steps that a tree's policy may be behind. 0: sampling and training take turns, each with all
    cores."""
    over_provision: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Groups that are grown beyond those that a step needs (APRIL); the first to close are taken,
    the rest continue first in the next step."""
    curriculum: Name = "uniform"
    """Rule for the row of each training group and its sampling: a registered name or
    module:attribute."""
    curriculum_settings: Settings = {}
    """Settings of the curriculum."""
    redundancy: Annotated[int, Field(ge=0, le=1024)] = 0
    """Trees that a group is opened with beyond those that it takes; once it has enough, the others
    are stopped."""
    redundancy_debias: Literal["none", "cancel_uniform"] = "none"
    """none: the first trees to close are taken, which favours short answers. cancel_uniform: the
    trees to stop are drawn without regard to their time, so a spare only replaces a dropped tree.
    """
    stale_groups: Literal["keep", "drop"] = "keep"
    """drop: groups that were opened more than max_staleness steps ago are dropped. keep: only their
    stale leaves are."""
    rooms: Annotated[str, Field(max_length=200)] = ""
    """Rule that shares the growth budget among growing trees (xrpo), for a tree policy that grows
    in steps of it; empty for none."""
    rooms_settings: Settings = {}
    """Settings of `rooms`."""
    max_claims: Annotated[int, Field(ge=1, le=1000)] = 5
    """Claims of a tree without a new segment after which it is dropped."""
    score_deadline_s: Annotated[float, Field(gt=0, le=86_400)] = 120.0
    """Time that a leaf may wait for a score before it is UNSCORABLE(DEADLINE)."""

    @model_validator(mode="after")
    def _carried(self) -> "Control":
        if self.over_provision and not self.max_staleness:
            raise ValueError(
                "over_provision carries groups over to later steps: set max_staleness to at least 1"
            )
        if self.redundancy_debias != "none" and not self.redundancy:
            raise ValueError(
                "redundancy_debias says which trees redundancy stops: set redundancy to at least 1"
            )
        return self
