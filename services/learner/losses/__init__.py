"""Losses on gathered path values: the ordinary per-sequence losses, whatever tree the values came from.

`P_T` tensors hold one path a row and one trained token a column; `mask_P_T` says which columns are real. What may be set of
them is in banyan/losses, which needs no torch; the classes here are those settings, and compute.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from banyan import losses as settings_of
from banyan.losses import NAMES, Library
from services.learner.losses.aggregate import Aggregate, Totals
from services.learner.losses.cispo import Cispo
from services.learner.losses.composed import Composed, Measures
from services.learner.losses.dpo import Dpo
from services.learner.losses.echo_clip import EchoClip
from services.learner.losses.gspo import Gspo
from services.learner.losses.importance import Importance, Rejection
from services.learner.losses.kl import Kl
from services.learner.losses.otr import Otr
from services.learner.losses.ppo_clip import PpoClip
from services.learner.losses.reinforce import Reinforce
from services.learner.losses.tokens import Tokens
from services.learner.model.tempered import Softening
from services.learner.packing.loss_targets import Taught

__all__ = ["NAMES", "Loss", "build"]


class Loss(Protocol):
    """What a row of gathered values adds to the loss of a batch, and what that takes."""

    @property
    def needs_reference(self) -> bool:
        """Whether `Tokens.reference_P_T` is needed, or the reward's penalty."""
        ...

    @property
    def reward_kl(self) -> Kl | None:
        """The penalty that is taken from rewards before advantages are estimated."""
        ...

    @property
    def surveys(self) -> bool:
        """Whether `survey` must have seen all rows before the first gradient."""
        ...

    @property
    def entropy(self) -> float:
        """Factor of the entropy bonus."""
        ...

    @property
    def softening(self) -> Softening | None:
        """Of the policy that one-token rollouts draw from, if the loss is of such."""
        ...

    @property
    def taught(self) -> Taught:
        """Which tokens it is taken on."""
        ...

    def survey(self, tokens: Tokens) -> tuple[float, float]:
        """A row's sum of importance weights, and how many they are; their mean is `Totals.weight`."""
        ...

    def of(self, tokens: Tokens, totals: Totals) -> tuple[torch.Tensor, Measures]:
        """A row's part of the loss, and what it says of it."""
        ...


_LIBRARY = Library(
    {
        cls.__name__: cls
        for cls in (
            PpoClip,
            Gspo,
            Cispo,
            EchoClip,
            Reinforce,
            Otr,
            Dpo,
            Aggregate,
            Importance,
            Rejection,
            Composed,
        )
    }
)


def build(name: str, settings: Mapping[str, Any]) -> Loss:
    """The loss of a recipe. Raises InvalidInput."""
    return settings_of.build(name, settings, _LIBRARY)  # type: ignore[no-any-return]
