"""Reference of a recipe's keys: values, default and meaning, from the parts' definitions.

`python -m banyan.recipe.reference` prints docs/recipe.md.
"""

import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from banyan.recipe.part import parts_in
from banyan.recipe.whole import Recipe
from banyan.text.field_meanings import field_meanings

_WORDS = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
    Any: "anything",
}
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_HEAD = """# The keys of a recipe

A recipe is one YAML file; `--set key=value` puts a value on top, such as
`--set generate.temperature=0.8` or, in a list, `--set filter.0.name=number`. `banyan recipes keys`
prints this table, `banyan recipes show NAME` a recipe with every default filled in. Unknown keys
and impossible values are refused with the line and the reason.

This page is written from banyan/recipe/ (`make recipe-page`); a test compares the two.
"""


@dataclass(frozen=True, slots=True)
class Key:
    """Key of a recipe.

    key: its name with dots
    takes: possible values, in words
    default: default as JSON
    meaning: text of its definition
    """

    key: str
    takes: str
    default: str
    meaning: str


def listed(form: type[BaseModel] = Recipe, before: str = "") -> Iterator[Key]:
    """Yield the keys of a part; behind a key that is a part itself, its keys.

    A position in a list is written as 0.
    """
    meanings = field_meanings(form)
    for name, field in form.model_fields.items():
        below = next(parts_in(field.annotation), None)
        meaning = meanings.get(name) or (inspect.getdoc(below) or "" if below else "")
        yield Key(before + name, _takes(field.annotation, field.metadata), _default(field), meaning)
        if below:
            place = ".0." if get_origin(field.annotation) is list else "."
            yield from listed(below, before + name + place)


def markdown() -> str:
    """Return the page."""
    lines, keys = [_HEAD], list(listed())
    parts = dict.fromkeys(key.key.split(".")[0] for key in keys if "." in key.key)
    own = [key for key in keys if key.key not in parts and "." not in key.key]
    lines += _table("The run", "", own)
    for part in parts:
        whole = next(key for key in keys if key.key == part)
        lines += _table(
            f"`{part}`", whole.meaning, [key for key in keys if key.key.startswith(part + ".")]
        )
    return "\n".join(lines)


def _table(title: str, meaning: str, keys: Sequence[Key]) -> list[str]:
    rows = [
        f"| `{k.key}` | {_cell(k.takes)} | {_cell(k.default)} | {_cell(k.meaning)} |" for k in keys
    ]
    return [
        f"## {title}",
        "",
        *([meaning, ""] if meaning else []),
        "| key | takes | default | meaning |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    return "" if isinstance(default, BaseModel) else json.dumps(default, ensure_ascii=False)


def _takes(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Return the possible values in words, with their bounds."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _takes(
            args[0],
            [
                m
                for extra in args[1:]
                for m in (extra.metadata if isinstance(extra, FieldInfo) else [extra])
            ],
        )
    bounds = [
        f"{sign} {value:,}"
        for m in metadata
        for name, sign in _SIGNS.items()
        if (value := getattr(m, name, None)) is not None
    ]
    return ", ".join([_kind(annotation, origin, args), *bounds])


def _kind(annotation: Any, origin: Any, args: Sequence[Any]) -> str:
    if origin is Literal:
        return ", ".join(map(str, args))
    if origin is list:
        return f"list of {_takes(args[0])}"
    if origin is tuple:
        return " and ".join(map(_takes, args))
    if origin is dict:
        return "mapping"
    if args:
        return " or ".join(map(_takes, args))
    return (
        "keys below"
        if isinstance(annotation, type) and issubclass(annotation, BaseModel)
        else _WORDS[annotation]
    )


if __name__ == "__main__":
    sys.stdout.write(markdown())
