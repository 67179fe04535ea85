"""Rows of an Arrow batch, from files of Parquet and from data sets of the hub."""

from typing import Any

from banyan.errors import InvalidInput
from services.gateway.tasks.sources.text_file import brief


def rows(batch: Any, source: str, before: int) -> list[dict[str, Any]]:
    """Return a batch's rows as Python values. `before`: rows of the source before the batch.

    Raise InvalidInput that names the column if two have one name, or if it holds what Python has no
    value for: a text that is not UTF-8, a time that is too far away or in no known zone.
    """
    names = list(batch.schema.names)
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise InvalidInput(
            f"{source} has two columns {brief(repr(twice[0]))}; give each a name of its own"
        )
    columns = [_values(batch, name, source, before) for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(batch: Any, name: str, source: str, before: int) -> list[Any]:
    try:
        return list(batch.column(name).to_pylist())
    except (ValueError, OverflowError, LookupError) as error:  # a zone's name is looked up
        raise InvalidInput(
            f"{source} rows {before + 1} to {before + len(batch)}: column {brief(repr(name))} holds"
            f" a value that cannot be read: {type(error).__name__}: {error}; convert it first"
        ) from None
