"""What is wrong with a recipe, in words for people: where it was said, the key, the reason and the value."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from banyan.recipe.part import parts_in

Place = tuple[str | int, ...]
Places = dict[Place, str]  # where a key was said, such as "r.yaml, line 3"

_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "unknown key",
    "invalid_key": "keys must be texts",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a text",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of names and values",
    "model_type": "must be a part of the recipe with keys of its own",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "literal_error": "must be {expected}",
}


def explained(
    error: ValidationError,
    data: Mapping[str, Any],
    name: str,
    places: Places,
    form: type[BaseModel] | None = None,
) -> str:
    """One line for each key that is wrong; what several forms of one value have against it is one line.

    form: what the data should be; names the keys that an unknown one may have meant.
    """
    found: dict[Place, list[Any]] = {}
    for one in error.errors():
        found.setdefault(_place(one, data), []).append(one)
    return "\n".join(
        _line(place, errors, name, places) + (_meant(form, place) if _unknown(errors) else "")
        for place, errors in found.items()
    )


def _unknown(errors: list[Any]) -> bool:
    return all(error["type"] == "extra_forbidden" for error in errors)


def _meant(form: type[BaseModel] | None, place: Place) -> str:
    """The known key that is most alike, or all."""
    for part in place[:-1]:
        field = form.model_fields.get(str(part)) if form and not isinstance(part, int) else None
        form = (
            next(parts_in(field.annotation), None)
            if field
            else form
            if isinstance(part, int)
            else None
        )
    if form is None:
        return ""
    near = difflib.get_close_matches(str(place[-1]), form.model_fields, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(form.model_fields)}"


def _place(error: Any, data: Mapping[str, Any]) -> Place:
    """The error's place in the data. Behind it pydantic may name the form of the value that it tried."""
    where: Place = tuple(error["loc"])
    at: Any = data
    for depth, part in enumerate(where):
        inside = isinstance(at, Mapping) or (isinstance(at, Sequence) and not isinstance(at, str))
        if not inside:
            return where[:depth]
        try:
            at = at[part]
        except (KeyError, IndexError, TypeError):
            return where[: depth + 1]
    return (*where, *error.get("ctx", {}).get("below", ()))


def _line(place: Place, errors: list[Any], name: str, places: Places) -> str:
    said = next((places[place[:n]] for n in range(len(place), -1, -1) if place[:n] in places), name)
    key = ".".join(str(part) for part in place) or "recipe"
    reason = " or ".join(dict.fromkeys(_reason(error) for error in errors))
    silent = (
        errors[0]["type"] in ("missing", "extra_forbidden", "not_finite", "too_deep") or not place
    )
    return f"{said}: {key}: {reason}" + ("" if silent else f" (got {_brief(errors[0]['input'])})")


def _reason(error: Any) -> str:
    words = _WORDS.get(error["type"])
    if words is None and error["type"] in ("too_short", "too_long", "tuple_type"):
        words = "must be a list with another number of values"
    return (
        words.format(**error.get("ctx", {}))
        if words
        else str(error["msg"]).removeprefix("Value error, ")
    )


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
