"""Losses on gathered path values: the ordinary per-sequence losses, whatever tree the values came from.

`P_T` tensors hold one path a row and one trained token a column; `mask_P_T` says which columns are real. A recipe names a
loss in `optimise.loss`; its settings are those of its surrogate, of the aggregation, and the parts that any loss may have.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch

from banyan.errors import InvalidInput
from services.learner.losses.aggregate import Aggregate, Totals
from services.learner.losses.cispo import Cispo
from services.learner.losses.composed import Composed, Measures
from services.learner.losses.dpo import Dpo
from services.learner.losses.echo_clip import EchoClip
from services.learner.losses.gspo import Gspo
from services.learner.losses.importance import Importance, Rejection
from services.learner.losses.kl import Kl
from services.learner.losses.ppo_clip import PpoClip
from services.learner.losses.reinforce import Reinforce
from services.learner.losses.settings import check, made, names, refuse_unknown
from services.learner.losses.tokens import Tokens
from services.learner.taught import Taught


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
    def taught(self) -> Taught:
        """Which tokens it is taken on."""
        ...

    def survey(self, tokens: Tokens) -> tuple[float, float]:
        """A row's sum of importance weights, and how many they are; their mean is `Totals.weight`."""
        ...

    def of(self, tokens: Tokens, totals: Totals) -> tuple[torch.Tensor, Measures]:
        """A row's part of the loss, and what it says of it."""
        ...


class _Kind(NamedTuple):
    surrogate: type[Any]
    defaults: Mapping[str, Any] = {}


_UNBOUNDED = {"level": "token", "cap": 0.0}
_LOSSES = {
    "ppo-clip": _Kind(PpoClip),
    "reinforce": _Kind(Reinforce),
    "decoupled": _Kind(PpoClip, {"old": "proximal", "importance": _UNBOUNDED}),
    "gspo": _Kind(Gspo, {"mode": Gspo.MODE}),
    "cispo": _Kind(Cispo),
    "echo-clip": _Kind(EchoClip),
}
NAMES = (*_LOSSES, "dpo")
_PARTS: Mapping[str, type[Any]] = {"importance": Importance, "reject": Rejection, "kl": Kl}
_OWN = {"old", "entropy", "forced", "shaping"}


def build(name: str, settings: Mapping[str, Any]) -> Loss:
    """The loss of a recipe. Settings of the aggregation stand beside the loss's own. Raises InvalidInput."""
    try:
        return made(Dpo, settings, "it") if name == "dpo" else _composed(name, settings)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"loss {name!r}: {error}") from None


def _composed(name: str, given: Mapping[str, Any]) -> Composed:
    kind = _LOSSES[name]
    own, shared = names(kind.surrogate), names(Aggregate)
    refuse_unknown(given, own | shared | set(_PARTS) | _OWN, "it")
    settings = {**kind.defaults, **given}
    mode = getattr(kind.surrogate, "MODE", settings.get("mode"))
    if mode != settings.get("mode"):
        raise ValueError(f"it is the mean over paths, mode {mode}, always; got {settings['mode']!r}")
    parts: dict[str, Any] = {
        part: made(cls, settings[part], part) for part, cls in _PARTS.items() if settings.get(part) is not None
    }
    rest: dict[str, Any] = {"old": "", "entropy": 0.0, "forced": {}, "shaping": 0.1} | {
        n: settings[n] for n in _OWN & set(settings)
    }
    check(Composed, rest, "it")
    forced = rest["forced"]
    if not isinstance(forced, Mapping) or not all(isinstance(word, str) for pair in forced.items() for word in pair):
        raise ValueError(f"forced {forced!r} must map origins to policy or shaped")
    return Composed(
        surrogate=made(kind.surrogate, {n: v for n, v in settings.items() if n in own}, "it"),
        aggregate=made(Aggregate, {n: v for n, v in settings.items() if n in shared}, "it"),
        **rest,
        **parts,
    )
