"""Settings of a loss from a recipe: names and types are checked against the fields of its parts. Pure."""

import sys
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
    check(cls, given, what)
    return cls(**given)


def check(cls: Any, given: Mapping[str, Any], what: str) -> None:
    """Raises ValueError for a value that is not of the kind of the part's own default. Others are not looked at."""
    for field in fields(cls):
        if field.name in given:
            _check(given[field.name], field, f"{what}.{field.name}")


def _check(value: Any, field: "Field[Any]", what: str) -> None:
    default = field.default
    if default is MISSING or default is None:
        return
    if isinstance(default, float):
        good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    else:
        good = type(value) is type(default)
    if not good:
        kind = {float: "a number, and finite", int: "a whole number", bool: "true or false", str: "a name"}[type(default)]
        raise ValueError(f"{what} {value!r} must be {kind}")
