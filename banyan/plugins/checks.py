"""Settings of plugins: numbers are numbers, and within bounds. The registry names the plugin of a ValueError."""

import sys
from collections.abc import Iterable
from typing import Any

_KINDS = {int: "a whole number", bool: "true or false", str: "a name"}


def whole(part: Any, names: Iterable[str], least: int, most: int | None = None) -> None:
    """Each is a whole number of these bounds."""
    for name in names:
        value = getattr(part, name)
        if type(value) is not int or value < least or (most is not None and value > most):
            bounds = f"of at least {least}" if most is None else f"in {least}..{most}"
            raise ValueError(f"{name} must be a whole number {bounds}, got {value!r}")


def finite(part: Any, names: Iterable[str]) -> None:
    """Each is a finite number."""
    for name in names:
        _finite(name, getattr(part, name))


def like(name: str, value: Any, default: float | int | str) -> None:
    """The value is of the kind of a default: a finite number, a whole number, true or false, or a name."""
    if isinstance(default, float):
        _finite(name, value)
    elif type(value) is not type(default):
        raise ValueError(f"{name} must be {_KINDS[type(default)]}, got {value!r}")


def _finite(name: str, value: Any) -> None:
    if (
        type(value) not in (int, float) or not abs(value) <= sys.float_info.max
    ):  # 10**400 is no float either
        raise ValueError(f"{name} must be a finite number, got {value!r}")
