"""Losses by name, and what may be set of them. Pure and without torch, so that a recipe is checked wherever it is read.

A recipe names a loss in `optimise.loss`; its settings are those of its surrogate, of the aggregation, and the parts that any
loss may have. The learner builds its own classes, which compute, from the same settings (`Library`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from banyan.errors import InvalidInput
from banyan.losses import parts, surrogates
from banyan.plugins import checks


class Kind(NamedTuple):
    """A loss: its surrogate, and settings that it has unless others are given."""

    surrogate: type[Any]
    defaults: Mapping[str, Any] = {}


_UNBOUNDED = {"level": "token", "cap": 0.0}
_SETTINGS = {
    "ppo-clip": Kind(surrogates.PpoClip),
    "reinforce": Kind(surrogates.Reinforce),
    "decoupled": Kind(surrogates.PpoClip, {"old": "proximal", "importance": _UNBOUNDED}),
    "gspo": Kind(surrogates.Gspo, {"mode": surrogates.Gspo.MODE}),
    "cispo": Kind(surrogates.Cispo),
    "echo-clip": Kind(surrogates.EchoClip),
    "otr": Kind(surrogates.Otr),
    "dpo": Kind(surrogates.Dpo),
}
NAMES = tuple(_SETTINGS)
_OWN = {"old", "entropy", "forced", "shaping"}


@dataclass(frozen=True)
class Library:
    """The classes that losses are built of. own: those that take the place of settings of the same name."""

    own: Mapping[str, type[Any]]

    def of(self, settings: type[Any]) -> type[Any]:
        """The class for some settings."""
        return self.own.get(settings.__name__, settings)


SETTINGS = Library({})


def check(name: str, settings: Mapping[str, Any]) -> None:
    """Raises InvalidInput for settings that a loss does not take."""
    build(name, settings)


def build(name: str, settings: Mapping[str, Any], library: Library = SETTINGS) -> Any:
    """The loss of a recipe. Settings of the aggregation stand beside the loss's own. Raises InvalidInput."""
    try:
        if name == "dpo":
            return _made(library.of(surrogates.Dpo), settings, "it")
        return _composed(_SETTINGS[name], settings, library)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"loss {name!r}: {error}") from None


def _composed(kind: Kind, given: Mapping[str, Any], library: Library) -> Any:
    surrogate, aggregate = library.of(kind.surrogate), library.of(parts.Aggregate)
    some = {"importance": parts.Importance, "reject": parts.Rejection, "kl": parts.Kl}
    own, shared = _names(surrogate), _names(aggregate)
    _refuse_unknown(given, own | shared | set(some) | _OWN, "it")
    settings = {**kind.defaults, **given}
    mode = getattr(surrogate, "MODE", settings.get("mode"))
    if mode != settings.get("mode"):
        raise ValueError(
            f"it is the mean over paths, mode {mode}, always; got {settings['mode']!r}"
        )
    return library.of(parts.Composed)(
        surrogate=_made(surrogate, {n: v for n, v in settings.items() if n in own}, "it"),
        aggregate=_made(aggregate, {n: v for n, v in settings.items() if n in shared}, "it"),
        **_rest(settings),
        **{
            n: _made(library.of(cls), settings[n], n)
            for n, cls in some.items()
            if settings.get(n) is not None
        },
    )


def _rest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that belong to no part."""
    rest = {name: settings[name] for name in _OWN & set(settings)}
    _check(parts.Composed, rest, "it")
    forced = rest.get("forced", {})
    if not isinstance(forced, Mapping) or not all(
        isinstance(word, str) for pair in forced.items() for word in pair
    ):
        raise ValueError(f"forced {forced!r} must map origins to policy or shaped")
    return rest


def _names(cls: type[Any]) -> set[str]:
    return {f.name for f in fields(cls)}


def _refuse_unknown(given: Collection[str], known: Collection[str], what: str) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"{what} has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")


def _made(cls: type[Any], given: Any, what: str) -> Any:
    """The part with the settings given. Raises ValueError."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{what} {given!r} must be a mapping of {', '.join(sorted(_names(cls)))}")
    _refuse_unknown(given, _names(cls), what)
    _check(cls, given, what)
    return cls(**given)


def _check(cls: type[Any], given: Mapping[str, Any], what: str) -> None:
    """Raises ValueError for a value that is not of the kind of the part's own default. Others are not looked at."""
    for field in fields(cls):
        if field.name in given and isinstance(field.default, float | int | str):
            checks.like(
                field.name if what == "it" else f"{what}.{field.name}",
                given[field.name],
                field.default,
            )
