"""Comparison of a program's answer with the expected one, as JSON values and as lines."""

import json
import math
from typing import Any

_DEEPEST = 64


def value(text: bytes) -> Any:
    """Return the JSON value in a text. Raises ValueError for anything else, NaN included."""
    try:
        return json.loads(text.decode(), parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def same(found: Any, expected: Any, tolerance: float, depth: int = 0) -> bool:
    """Return whether two JSON values are equal.

    True is not 1; numbers are equal within a relative and absolute tolerance if one of them has a
    fraction.
    """
    if depth > _DEEPEST:
        return False
    if isinstance(expected, bool) or isinstance(found, bool):
        return found is expected
    if isinstance(expected, int) and isinstance(found, int):
        return found == expected
    if isinstance(expected, int | float) and isinstance(found, int | float):
        return _near(found, expected, tolerance)
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(
            same(f, e, tolerance, depth + 1) for f, e in zip(found, expected, strict=True)
        )
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(
            same(found[key], expected[key], tolerance, depth + 1) for key in expected
        )
    return type(found) is type(expected) and bool(found == expected)


def _near(found: float, expected: float, tolerance: float) -> bool:
    try:
        return math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # an int beyond any float
        return False


def same_lines(found: bytes, expected: str) -> bool:
    """Return whether two outputs are equal but for white space at the ends of lines and texts."""
    try:
        return _lines(found.decode()) == _lines(expected)
    except UnicodeDecodeError:
        return False


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
