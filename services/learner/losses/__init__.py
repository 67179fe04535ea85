"""Losses on gathered path values: the ordinary per-sequence losses, whatever tree the values came from.

`P_T` tensors hold one path a row and one trained token a column; `mask_P_T` says which columns are real.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Protocol

import torch

from banyan.errors import InvalidInput
from services.learner.losses.aggregate import Aggregate
from services.learner.losses.ppo_clip import PpoClip
from services.learner.losses.reinforce import Reinforce


class Loss(Protocol):
    """A loss per token, and how the tokens of a batch become one number."""

    @property
    def aggregate(self) -> Aggregate:
        """How tokens are weighted."""
        ...

    def per_token(
        self, logp_P_T: torch.Tensor, old_P_T: torch.Tensor, advantage_P_T: torch.Tensor, mask_P_T: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of each token, and whether its ratio was clipped."""
        ...


_LOSSES: dict[str, type[PpoClip] | type[Reinforce]] = {"ppo-clip": PpoClip, "reinforce": Reinforce}
_AGGREGATE = {"mode", "length"}


def build(name: str, settings: Mapping[str, Any]) -> Loss:
    """The loss of a recipe. Settings of the aggregation stand beside the loss's own."""
    cls = _LOSSES[name]
    own = {f.name for f in fields(cls)} - {"aggregate"}
    unknown = sorted(set(settings) - own - _AGGREGATE)
    if unknown:
        known = ", ".join(sorted(own | _AGGREGATE))
        raise InvalidInput(f"loss {name!r} has no setting {unknown[0]!r}; it has {known}")
    try:
        aggregate = Aggregate(**{k: v for k, v in settings.items() if k in _AGGREGATE})
        return cls(aggregate=aggregate, **{k: v for k, v in settings.items() if k in own})
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"loss {name!r}: {error}") from None
