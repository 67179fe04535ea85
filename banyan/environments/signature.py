"""The signature of a tool: its JSON schema, and the check of a call's arguments."""

import inspect
import json
import math
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_NAMES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}

_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


@dataclass(frozen=True, slots=True)
class Signature:
    """A tool's name, description and parameters.

    name: name of the function
    text: first paragraph of its docstring
    types: annotation of each parameter
    defaults: parameters that need no argument
    """

    name: str
    text: str
    types: Mapping[str, Any]
    defaults: frozenset[str]

    @classmethod
    def of(cls, function: Callable[..., Any], filled: Collection[str] = ()) -> "Signature":
        """Return a function's signature.

        filled: parameters that no call names, because they are filled in

        Raises ValueError for a parameter without a type that JSON has, or that takes any number,
        and for a function that does not return its answer.
        """
        name = function.__name__
        if any(kind(function) for kind in _LATER):
            raise ValueError(f"tool {name}: an async function or a generator returns no answer")
        hints = get_type_hints(function)
        types_of, defaults = {}, set()
        for key, parameter in inspect.signature(function).parameters.items():
            if key in filled:
                continue
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ValueError(f"tool {name}: parameter {key} must have a name in calls")
            if key not in hints:
                raise ValueError(f"tool {name}: parameter {key} needs a type, such as {key}: str")
            _schema(hints[key], f"tool {name}: parameter {key}")
            types_of[key] = hints[key]
            if parameter.default is not parameter.empty:
                defaults.add(key)
        text = (inspect.getdoc(function) or "").split("\n\n")[0]
        return cls(name, " ".join(text.split()), types_of, frozenset(defaults))

    def schema(self) -> dict[str, Any]:
        """Return the tool as chat templates of most models describe one."""
        parameters = {
            "type": "object",
            "properties": {key: _schema(kind, key) for key, kind in self.types.items()},
            "required": [key for key in self.types if key not in self.defaults],
        }
        described = {"name": self.name, "description": self.text, "parameters": parameters}
        return {"type": "function", "function": described}

    def checked(self, arguments: Any) -> dict[str, Any]:
        """Return the arguments of a call. Raises ValueError that names the first wrong one."""
        if not isinstance(arguments, dict):
            raise ValueError(f"arguments must be an object, got {_json(arguments):.60}")
        for key in arguments:
            if key not in self.types:
                known = ", ".join(self.types) or "none"
                raise ValueError(f"{self.name} has no argument {key!r}; it has {known}")
        for key, kind in self.types.items():
            if key not in arguments and key not in self.defaults:
                raise ValueError(f"{self.name} needs the argument {key!r}")
            if key in arguments and not _fits(arguments[key], kind):
                wanted, got = _json(_schema(kind, key)), _json(arguments[key])
                raise ValueError(f"argument {key!r} must be {wanted}, got {got:.60}")
        return arguments


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _schema(kind: Any, where: str) -> dict[str, Any]:
    if kind in _NAMES:
        return {"type": _NAMES[kind]}
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal and all(type(part) in _NAMES for part in parts):
        return {"enum": list(parts)}
    if kind is list or origin is list:
        return {"type": "array"} | ({"items": _schema(parts[0], where)} if parts else {})
    if kind is dict or (origin is dict and parts[0] is str):
        values = {"additionalProperties": _schema(parts[1], where)} if parts else {}
        return {"type": "object"} | values
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(part, where) for part in parts]}
    raise ValueError(
        f"{where} has the type {kind!r}; use str, int, float, bool, list, dict with names, Literal"
        " or unions of them"
    )


def _fits(value: Any, kind: Any) -> bool:
    if kind is float:  # JSON has no NaN and no infinity
        return type(value) is int or (type(value) is float and math.isfinite(value))
    if kind in _NAMES:
        return type(value) is kind
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if kind is list or origin is list:
        return isinstance(value, list) and all(_fits(one, parts[0]) for one in value if parts)
    if kind is dict or origin is dict:
        inner = value.values() if isinstance(value, dict) and parts else ()
        return isinstance(value, dict) and all(_fits(one, parts[1]) for one in inner)
    return any(_fits(value, part) for part in parts)
