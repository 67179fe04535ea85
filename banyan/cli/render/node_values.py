"""Values of nodes in files of trees, each checked with a message that names node and value."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from banyan.errors import InvalidInput


def word(data: Mapping[str, Any], name: str, whose: str) -> str:
    """Return a required text of the tree or a node, which UTF-8 can encode."""
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{whose} needs {name!r}, a string, got {json.dumps(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"{whose} has {name!r} {json.dumps(value)}, which contains a lone surrogate"
        ) from None
    return value


def enum(node: Mapping[str, Any], name: str, kinds: Any, plain: Any) -> Any:
    """Return a member of `kinds` by its name in a node; `plain` if missing."""
    value = node.get(name)
    if value is None:
        return plain
    if not isinstance(value, str) or value not in kinds.__members__:
        raise InvalidInput(
            f"node {node['id']!r} has {name} {json.dumps(value)}; known: "
            f"{', '.join(kinds.__members__)}"
        )
    return kinds[value]


def count(node: Mapping[str, Any], name: str, plain: int) -> int:
    """Return a whole number of a node; `plain` if missing."""
    value = node.get(name)
    if value is None:
        return plain
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
        raise InvalidInput(
            f"node {node['id']!r} has {name} {json.dumps(value)}; it must be a whole number from 0"
        )
    return value


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def optional_number(value: Any, what: str) -> float | None:
    """Return a value as a finite number; None for null."""
    return None if value is None else number(value, what, ", or null where there is none")


def number(value: Any, what: str, instead: str = "") -> float:
    """Return a value as a finite number. instead: addition to the message."""
    if isinstance(value, bool) or not _finite(value):
        raise InvalidInput(f"{what} {json.dumps(value)}; it must be a finite number{instead}")
    return float(value)


def numbers(node: Mapping[str, Any], name: str, plain: list[Any], whole: bool = False) -> list[Any]:
    """Return a list of finite numbers of a node, whole ones on request; `plain` if missing."""
    values = node.get(name)
    if values is None:
        return plain
    if not isinstance(values, list):
        raise InvalidInput(
            f"node {node['id']!r} has {name} {json.dumps(values)[:40]}; it must be a list of "
            "numbers"
        )
    for value in values:
        number(value, f"node {node['id']!r} has in {name} the value")
        if whole and (not isinstance(value, int) or not 0 <= value < 2**31):
            raise InvalidInput(
                f"node {node['id']!r} has the token {value!r}; tokens are whole numbers from 0 to "
                "2^31 - 1"
            )
    return values


def parts(data: Mapping[str, Any], name: str) -> dict[str, float]:
    """Return the named parts of a leaf's score."""
    parts = data.get("parts") or {}
    if not isinstance(parts, dict):
        raise InvalidInput(
            f"node {name!r} has parts {json.dumps(parts)[:40]}; they must be an object of numbers"
        )
    return {
        key: number(value, f"node {name!r} has as part {key!r} the value")
        for key, value in parts.items()
    }


def named(node: Mapping[str, Any]) -> dict[str, float | str]:
    """Return a node's attributes: numbers and texts."""
    named = node["named"]
    if not isinstance(named, dict) or not all(
        isinstance(v, str) or _finite(v) for v in named.values()
    ):
        raise InvalidInput(
            f"node {node['id']!r} has named {json.dumps(named)[:40]}; give an object of numbers "
            "and words"
        )
    return named
