"""Losses on gathered path values: the ordinary per-sequence losses, whatever tree they came from.

`P_T` tensors hold one path per line and one trained token per column; `mask_P_T` tells which
columns are real. The settings are in banyan/losses, which needs no torch; the classes here are
those settings with the computation.
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
from services.learner.packing.loss_targets import LossTargets

__all__ = ["NAMES", "Loss", "build"]


class Loss(Protocol):
    """A loss: what a sequence of gathered values adds to the loss of a batch, and its needs."""

    @property
    def needs_reference(self) -> bool:
        """True if it needs `Tokens.reference_P_T`, or the reward's penalty."""
        ...

    @property
    def reward_kl(self) -> Kl | None:
        """The penalty that is subtracted from rewards before advantages are estimated."""
        ...

    @property
    def needs_survey(self) -> bool:
        """True if `survey` must have seen all sequences before the first gradient."""
        ...

    @property
    def entropy(self) -> float:
        """Factor of the entropy bonus."""
        ...

    @property
    def softening(self) -> Softening | None:
        """Settings of the policy that one-token rollouts draw from, for a loss of such."""
        ...

    @property
    def targets(self) -> LossTargets:
        """Tokens that the loss is taken on."""
        ...

    def survey(self, tokens: Tokens) -> tuple[float, float]:
        """Return a sequence's sum of importance weights, and their number.

        Their mean over the batch is `Totals.weight`.
        """
        ...

    def compute(self, tokens: Tokens, totals: Totals) -> tuple[torch.Tensor, Measures]:
        """Return a sequence's part of the loss of the batch, and its measures."""
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
    """Return the loss of a recipe. Raise InvalidInput for unknown names or unsound settings."""
    return settings_of.build(name, settings, _LIBRARY)  # type: ignore[no-any-return]
