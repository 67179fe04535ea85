"""Reads a recipe: YAML with line numbers kept, `--set key=value` on top, validated, plugins resolved."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from banyan import registry
from banyan.errors import InvalidInput
from banyan.recipe import Recipe

Lines = dict[tuple[str | int, ...], int]


def load(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a file. Raises InvalidInput that names the file, the line, the value and the reason."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot read recipe {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"recipe {path} is not UTF-8 text") from None
    return parse(text, overrides, str(path))


def parse(text: str, overrides: Sequence[str] = (), name: str = "recipe") -> Recipe:
    """The recipe in a text."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidInput(f"{name} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise InvalidInput(f"{name} must be a YAML mapping, got {type(data).__name__}")
    lines: Lines = {}
    _note_lines(node, (), lines)
    for override in overrides:
        _override(data, override)
    return resolve(data, name, lines)


def resolve(data: dict[str, Any], name: str = "recipe", lines: Lines | None = None) -> Recipe:
    """The recipe of plain data, with every plugin found and built once so that bad settings are refused now."""
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        raise InvalidInput("\n".join(_explain(e, name, lines or {}) for e in error.errors())) from None
    registry.build("generate", recipe.generate.policy, recipe.generate.settings)
    registry.build("optimise", recipe.optimise.advantage, recipe.optimise.advantage_settings)
    for scorer in recipe.filter:
        registry.build("filter", scorer.name, scorer.settings)
    return recipe


def _explain(error: Any, name: str, lines: Lines) -> str:
    where = tuple(error["loc"])
    line = next((lines[where[:n]] for n in range(len(where), -1, -1) if where[:n] in lines), None)
    key = ".".join(str(part) for part in where) or "recipe"
    reason = "unknown key" if error["type"] == "extra_forbidden" else error["msg"].removeprefix("Value error, ")
    value = "" if error["type"] in ("missing", "extra_forbidden") or not where else f" (got {error['input']!r})"
    return f"{name}{f', line {line}' if line else ''}: {key}: {reason}{value}"


def _note_lines(node: Any, at: tuple[str | int, ...], lines: Lines) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            lines[(*at, key.value)] = key.start_mark.line + 1
            _note_lines(value, (*at, key.value), lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*at, index)] = value.start_mark.line + 1
            _note_lines(value, (*at, index), lines)


def _override(data: dict[str, Any], override: str) -> None:
    key, separator, value = override.partition("=")
    if not separator or not key:
        raise InvalidInput(f"--set {override!r} must be key=value, such as budget.steps=4")
    *path, last = key.strip().split(".")
    at = data
    for part in path:
        at = at.setdefault(part, {})
        if not isinstance(at, dict):
            raise InvalidInput(f"--set {override!r}: {part!r} is a value, not a part of the recipe")
    try:
        at[last] = yaml.safe_load(value)
    except yaml.YAMLError:
        raise InvalidInput(f"--set {override!r}: {value!r} is not a YAML value") from None
