"""Losses by name, and their settings; without torch, so that a recipe is checked anywhere.

A recipe names a loss in `optimise.loss`. Its settings are those of its surrogate, of the
aggregation, and of the parts that any loss may have. The learner builds its own classes, which
compute, from the same settings (`Library`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from banyan.errors import InvalidInput
from banyan.losses import parts, surrogates
from banyan.plugins import checks


class Kind(NamedTuple):
    """Loss: its surrogate, and defaults of settings."""

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
    """Classes that losses are built of. own: replacements of settings classes, by their names."""

    own: Mapping[str, type[Any]]

    def of(self, settings: type[Any]) -> type[Any]:
        """Return the class for some settings."""
        return self.own.get(settings.__name__, settings)


SETTINGS = Library({})


def check(name: str, settings: Mapping[str, Any]) -> None:
    """Raise InvalidInput for settings that a loss does not have."""
    build(name, settings)


def build(name: str, settings: Mapping[str, Any], library: Library = SETTINGS) -> Any:
    """Return the loss of a recipe.

    Settings of the aggregation stand beside the loss's own. Raises InvalidInput.
    """
    try:
        if name == "dpo":
            return _made(library.of(surrogates.Dpo), settings, "it")
        return _composed(_SETTINGS[name], settings, library)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"loss {name!r}: {error}") from None


def _composed(kind: Kind, own_settings: Mapping[str, Any], library: Library) -> Any:
    surrogate, aggregate = library.of(kind.surrogate), library.of(parts.Aggregate)
    optional_parts = {"importance": parts.Importance, "reject": parts.Rejection, "kl": parts.Kl}
    own, shared = _names(surrogate), _names(aggregate)
    _refuse_unknown(own_settings, own | shared | set(optional_parts) | _OWN, "it")
    settings = {**kind.defaults, **own_settings}
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
            for n, cls in optional_parts.items()
            if settings.get(n) is not None
        },
    )


def _rest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that belong to no part."""
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


def _refuse_unknown(names: Collection[str], known: Collection[str], what: str) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ValueError(f"{what} has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")


def _made(cls: type[Any], settings: Any, what: str) -> Any:
    """Return a part with its settings. Raises ValueError."""
    if not isinstance(settings, Mapping):
        raise ValueError(
            f"{what} {settings!r} must be a mapping of {', '.join(sorted(_names(cls)))}"
        )
    _refuse_unknown(settings, _names(cls), what)
    _check(cls, settings, what)
    return cls(**settings)


def _check(cls: type[Any], settings: Mapping[str, Any], what: str) -> None:
    """Raise ValueError for a value that differs in kind from the part's own default.

    Values without a number or text as default are not checked.
    """
    for field in fields(cls):
        if field.name in settings and isinstance(field.default, float | int | str):
            checks.like(
                field.name if what == "it" else f"{what}.{field.name}",
                settings[field.name],
                field.default,
            )
