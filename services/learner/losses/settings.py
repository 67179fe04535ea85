"""Settings of a loss from a recipe: names and types are checked against the fields of its parts. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

T = TypeVar("T")


def names(cls: Any) -> set[str]:
    """Settings of a part."""
    return {f.name for f in fields(cls)}


def refuse_unknown(given: Collection[str], known: Collection[str], what: str) -> None:
    """Raises ValueError for a name that is no setting."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"{what} has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")


def made(cls: type[T], given: Any, what: str) -> T:
    """The part with the settings given. Raises ValueError."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{what} {given!r} must be a mapping of {', '.join(sorted(names(cls)))}")
    refuse_unknown(given, names(cls), what)
    for field in fields(cls):  # type: ignore[arg-type]
        if field.name in given:
            _check(given[field.name], field, f"{what}.{field.name}")
    return cls(**given)


def _check(value: Any, field: "Field[Any]", what: str) -> None:
    default = field.default
    if default is MISSING:
        return
    if isinstance(default, float):
        good = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        good = type(value) is type(default)
    if not good:
        kind = {float: "a number", int: "a whole number", bool: "true or false", str: "a name"}[type(default)]
        raise ValueError(f"{what} {value!r} must be {kind}")
