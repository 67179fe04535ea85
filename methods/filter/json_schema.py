"""json-schema: 1 if the completion is JSON that its schema allows, else 0.

Left out: the keyword `format`, which only annotates; schemas on the network, which are not fetched

The JSON is the last fenced block marked json or without a language; without a block, the whole
completion. NaN, numbers that no float holds (1e999), a name twice in an object, and more than 64
levels are no JSON. With `equals` the value must also be that of the row: 3 and 3.0 are equal, true
and 1 are not.

It runs in a child process: a pattern in a schema may never end on some text. The package jsonschema
compares (drafts 3 to 2020-12, by $schema); `pip install 'banyan-rl[verifier]'` brings it.
"""

import importlib.metadata
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from banyan.plugins import Row, Scored, Unscorable, checks
from banyan.programs import fenced, same
from banyan.runtime.distribution import install

_PACKAGE = "jsonschema"
_LANGUAGES = ("json", "")
_DEEPEST = 64  # levels, of which each takes some ten frames of the interpreter to compare


@dataclass(slots=True)
class JsonSchema:
    """Validation of the completion's JSON by a schema of the recipe or of the row."""

    schema: Mapping[str, Any] = field(default_factory=dict)
    """JSON Schema; empty if each row has its own."""
    schema_field: str = ""
    """Field of the row that holds its schema, as a mapping or as JSON; empty for `schema`."""
    equals: str = ""
    """Field of the row that the value must equal; empty if any value will do that the schema
    allows."""
    alone: bool = False
    """True if the completion must be JSON and nothing else: no block, and no text around it."""

    name: str = field(default="json-schema", init=False)
    version: str = field(default_factory=lambda: f"{_version()}+1", init=False)

    def __post_init__(self) -> None:
        for name in ("schema_field", "equals"):
            checks.like(name, getattr(self, name), "")
        checks.like("alone", self.alone, False)
        if not isinstance(self.schema, Mapping):
            raise ValueError(f"schema must be a mapping, got {checks.shown(self.schema)}")
        if bool(self.schema) == bool(self.schema_field):
            raise ValueError(
                f"give either schema or schema_field, got schema {checks.shown(self.schema)} and "
                f"schema_field {self.schema_field!r}"
            )
        if self.schema:
            validator_of(self.schema)

    def warm(self, row: Row) -> None:
        """Import the package, so that forks share it. A row's own schema is compiled in a fork."""
        validator_of({})

    def score(self, completion: str, row: Row) -> Scored | Unscorable:
        """Return 1 or 0, with a part for each condition; UNSCORABLE for a bad row or schema."""
        try:
            validator = validator_of(self._schema(row))
            if self.equals and self.equals not in row:
                raise ValueError(f"the row has no field {self.equals!r}")
        except ValueError as error:
            return Unscorable(f"EXCEPTION: {error}")
        try:
            value = _value(completion if self.alone else _written(completion))
        except ValueError:
            return Scored(0.0, {"json": 0.0, "valid": 0.0})
        try:
            is_valid = bool(validator.is_valid(value))
        except Exception as error:
            # The library raises anything on a schema that passed its own check, such as a $ref
            # that leads nowhere, to no schema, or in a circle.
            return Unscorable(
                f"EXCEPTION: the schema cannot be applied: {checks.shown(error, 200)}"
            )
        right = is_valid and (not self.equals or same.same(value, row[self.equals], 0.0))
        return Scored(float(right), {"json": 1.0, "valid": float(is_valid)})

    def _schema(self, row: Row) -> Mapping[str, Any]:
        """Return the schema for a row. Raises ValueError if it has none."""
        if not self.schema_field:
            return self.schema
        schema = row.get(self.schema_field)
        if isinstance(schema, str):
            schema = _value(schema)
        if not isinstance(schema, Mapping):
            raise ValueError(
                f"field {self.schema_field!r} of the row is {checks.shown(schema)}, not a schema; "
                "give a mapping, or its JSON"
            )
        return schema


def _version() -> str:
    try:
        return importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ValueError(f"it needs the package {_PACKAGE}; {install('verifier')}") from None


def validator_of(schema: Mapping[str, Any]) -> Any:
    """Return a validator that fetches nothing. Raises ValueError for a schema that is none."""
    import jsonschema
    from jsonschema_specifications import REGISTRY  # the drafts' own schemas

    try:
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        kind.check_schema(schema)
        return kind(schema, registry=REGISTRY)
    except jsonschema.SchemaError as error:
        raise ValueError(
            f"the schema is none: at {error.json_path:.100} {checks.shown(error.message, 200)}"
        ) from None
    except Exception as error:
        # The library raises anything on names that are no text, endless nesting and the like.
        raise ValueError(f"the schema cannot be read: {checks.shown(error, 200)}") from None


def _written(completion: str) -> str:
    block = fenced.last(completion, _LANGUAGES)
    return completion if block is None else block


def _value(text: str) -> Any:
    """Return the JSON value in a text. Raises ValueError for any other text."""
    try:
        value = json.loads(
            text,
            parse_int=_whole,
            parse_float=_fraction,
            parse_constant=_refuse,
            object_pairs_hook=_object,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError(f"it is nested deeper than {_DEEPEST} levels")
        level = [item for held in level if isinstance(held, list | dict) for item in _items(held)]
    return value


def _items(held: list[Any] | dict[str, Any]) -> Iterable[Any]:
    return held.values() if isinstance(held, dict) else held


def _whole(text: str) -> int:
    _fraction(text)
    return int(text)


def _fraction(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"no float holds {text:.40}")
    return number


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) < len(pairs):
        raise ValueError("an object has a name twice")
    return names
