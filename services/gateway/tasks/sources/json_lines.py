"""Rows of a JSON Lines file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from banyan.errors import InvalidInput
from services.gateway.tasks.sources.text_file import brief, opened


def records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the value of each line that is not blank, with its place.

    Raise InvalidInput that names the line and its text.
    """
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path} line {number}"
                yield where, _parsed(line, where)


def _parsed(line: str, where: str) -> Any:
    try:
        return json.loads(line, parse_constant=_no_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        cause = str(error)
        if isinstance(error, json.JSONDecodeError):  # which counts lines within this one
            cause = f"{error.msg} at character {error.pos + 1}"
        raise InvalidInput(
            f"{where} is not JSON: {brief(line.strip())}: {cause}; each line must hold one object"
        ) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; a field that stands twice says two things of which one would be lost."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {brief(repr(twice))} stands twice in an object")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value; use null")
