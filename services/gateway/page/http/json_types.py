"""Types of JSON members as JSON schemas, for the OpenAPI document. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]


def text(about: str = "", *, words: Sequence[str] = (), pattern: str = "") -> Schema:
    """Return the type of a text.

    words: the only ones that it may be
    pattern: regular expression of the whole text
    """
    limits: dict[str, Any] = {"enum": list(words)} if words else {}
    return _of("string", about, **limits, **({"pattern": pattern} if pattern else {}))


def digits(about: str = "") -> Schema:
    """Return the type of an id: lower-case hex, two digits a byte; empty for an id of no bytes."""
    return text(about, pattern="^([0-9a-f]{2})*$")


def moment(about: str = "") -> Schema:
    """Return the type of a time in UTC in ISO form, or null."""
    return nullable(_of("string", about, format="date-time"))


def count(about: str = "") -> Schema:
    """Return the type of a whole number from 0."""
    return _of("integer", about, minimum=0)


def whole(about: str = "") -> Schema:
    """Return the type of a whole number."""
    return _of("integer", about)


def number(about: str = "") -> Schema:
    """Return the type of a number that is finite, or null."""
    return nullable(_of("number", about))


def flag(about: str = "") -> Schema:
    """Return the type of true or false."""
    return _of("boolean", about)


def anything(about: str = "") -> Schema:
    """Return the type of an object whose members are others' business, such as a recipe."""
    return _of("object", about)


def named(kind: Schema, about: str = "") -> Schema:
    """Return the type of an object with members of any name and one type."""
    return _of("object", about, additionalProperties=kind)


def each(kind: Schema, about: str = "") -> Schema:
    """Return the type of a list."""
    return _of("array", about, items=kind)


def pair(kind: Schema, about: str = "") -> Schema:
    """Return the type of a list of two."""
    return _of("array", about, items=kind, minItems=2, maxItems=2)


def members(parts: Mapping[str, Schema], about: str = "", *, more: Schema | None = None) -> Schema:
    """Return the type of an object that has all of some members.

    more: type of further members; without it there may be further ones of any type
    """
    limits = {} if more is None else {"additionalProperties": more}
    return _of("object", about, required=list(parts), properties=dict(parts), **limits)


def ref(name: str, about: str = "") -> Schema:
    """Return a type that the document names under `components`."""
    return {"$ref": f"#/components/schemas/{name}"} | ({"description": about} if about else {})


def nullable(kind: Schema) -> Schema:
    """Return a type that may be null as well."""
    if "type" not in kind:
        return {"anyOf": [kind, {"type": "null"}]}
    enum = {"enum": [*kind["enum"], None]} if "enum" in kind else {}
    return {**kind, "type": [kind["type"], "null"], **enum}


def _of(kind: str, about: str, **more: Any) -> Schema:
    return {"type": kind} | ({"description": about} if about else {}) | more


NEXT = nullable(text("cursor of the next page, or null after the last"))
