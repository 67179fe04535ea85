"""Checks of estimators' settings, no method: a refusal has the value and the possible ones.

Kinds of numbers are checked in banyan/plugins/checks.py.
"""

from collections.abc import Sequence


def one_of(name: str, value: str, known: Sequence[str]) -> None:
    """Raise ValueError unless the value is known."""
    if value not in known:
        raise ValueError(f"{name} {value!r} must be {', '.join(known[:-1])} or {known[-1]}")


def within(name: str, value: float, least: float, most: float) -> None:
    """Raise ValueError unless least ≤ value ≤ most."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name} {value!r} must be a number from {least:g} to {most:g}")


def epsilon(value: float) -> None:
    """Raise ValueError unless the value can be added to a divisor."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"epsilon {value!r} must lie in [0, 1)")


def flag(name: str, value: bool) -> None:
    """Raise ValueError unless the value is true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} {value!r} must be true or false")


def word(name: str, value: str) -> None:
    """Raise ValueError unless the value is a text."""
    if not isinstance(value, str):
        raise ValueError(f"{name} {value!r} must be a name")
