"""Settings of plugins: numbers are numbers, and within bounds. The registry names the plugin of a ValueError."""

import math
from collections.abc import Iterable
from typing import Any


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
        value = getattr(part, name)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number, got {value!r}")
