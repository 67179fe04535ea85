"""Checks of plugin settings. The registry adds the plugin's name to a ValueError."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

_KINDS = {int: "a whole number", bool: "true or false", str: "a name"}


def whole(part: Any, names: Iterable[str], least: int, most: int | None = None) -> None:
    """Raise ValueError unless each named setting is a whole number within the bounds."""
    for name in names:
        value = getattr(part, name)
        if type(value) is not int or value < least or (most is not None and value > most):
            bounds = f"of at least {least}" if most is None else f"in {least}..{most}"
            raise ValueError(f"{name} must be a whole number {bounds}, got {value!r}")


def finite(part: Any, names: Iterable[str]) -> None:
    """Raise ValueError unless each named setting is a finite number."""
    for name in names:
        _finite(name, getattr(part, name))


def like(name: str, value: Any, default: float | int | str) -> None:
    """Raise ValueError unless the value is of the same kind as a default."""
    if isinstance(default, float):
        _finite(name, value)
    elif type(value) is not type(default):
        raise ValueError(f"{name} must be {_KINDS[type(default)]}, got {value!r}")


def shown(value: Any, most: int = 60) -> str:
    """Return the beginning of a value's text for a message, or its type if it has no text.

    Integers of thousands of digits and very deep lists have none.
    """
    try:
        return repr(value)[:most]
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} that is too large to show"


def _finite(name: str, value: Any) -> None:
    # The comparison is exact for integers too large for a float, such as 10**400.
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"{name} must be a finite number, got {value!r}")


def field_shown(row: Mapping[str, Any], name: str) -> str:
    """Return the beginning of a field's text for a message; "missing" if the row lacks it."""
    return shown(row[name]) if name in row else "missing"
