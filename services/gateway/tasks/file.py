"""Rows of the user's own: JSON Lines, Parquet, CSV or TSV, or a data set of the Hugging Face hub.

Every row is checked before the run starts; a bad one is named.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from banyan.digest import canonical
from banyan.errors import InvalidInput
from banyan.recipe import Task
from banyan.recipe.hub_dataset import is_hub_dataset, parse
from services.gateway.tasks import sources
from services.gateway.tasks.prompt import messages
from services.gateway.tasks.size import check_size
from services.gateway.tasks.sources import hub
from services.gateway.tasks.sources.delimited import parted_otherwise
from services.gateway.tasks.sources.text_file import brief

RESERVED = "completion"  # the first argument of every reward function


def rows(task: Task, base: Path) -> list[dict[str, Any]]:
    """Return the rows of a file or data set.

    Raise InvalidInput that names the file, the line or row, and the value.
    """
    checked = list(_read(task, base))
    if not checked:
        source = task.path if is_hub_dataset(task.path) else _path(task, base)
        raise InvalidInput(f"{source} holds no rows")
    return checked


def first(task: Task, base: Path) -> dict[str, Any] | None:
    """Return the first row without reading the others; None if there are no rows."""
    return next(_read(task, base), None)


def fixed(task: Task) -> Task:
    """Return the task with the commit of its data set, so that its rows stay the same.

    Raise InvalidInput if the hub has no such data set, or cannot be reached and no copy is cached.
    """
    if task.name != "file" or not is_hub_dataset(task.path):
        return task
    return task.model_copy(update={"path": str(hub.fixed(parse(task.path)))})


def _read(task: Task, base: Path) -> Iterator[dict[str, Any]]:
    for where, row in _records(task, base):
        yield _checked(row, where, task)


def _records(task: Task, base: Path) -> Iterator[tuple[str, Any]]:
    if is_hub_dataset(task.path):
        return hub.records(parse(task.path))
    path = _path(task, base)
    if path.is_dir():
        raise InvalidInput(
            f"task.path {task.path!r} is a folder; name a file of JSON Lines, CSV or Parquet in it"
        )
    if not path.is_file():
        if os.path.lexists(path):
            raise InvalidInput(
                f"task.path {task.path!r}: {path} is a pipe, a device or a link to"
                " nothing; name a regular file"
            )
        raise InvalidInput(f"task.path {task.path!r}: there is no file {path}")
    return sources.of_file(path)


def _path(task: Task, base: Path) -> Path:
    return base / Path(os.path.expanduser(task.path))


def _checked(row: Any, where: str, task: Task) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise InvalidInput(
            f"{where} is {brief(repr(row))}; a row must be an object with named fields"
        )
    if RESERVED in row:
        raise InvalidInput(
            f"{where} has a field {RESERVED!r};"
            " reward functions get that from the model, so rename it"
        )
    try:
        check_size(row, where)
    except InvalidInput:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"{where} holds a value that JSON has no form for{_in_field(row, error)};"
            " convert it first"
        ) from None
    try:
        messages(row, task)
    except InvalidInput as error:
        hint = parted_otherwise(Path(task.path), list(row))
        raise InvalidInput(f"{where}: {error}{hint}") from None
    return row


def _in_field(row: dict[str, Any], error: Exception) -> str:
    """Return words that name the first field that JSON has no form for, and why; the error alone if
    it is of no field.
    """
    for name, value in row.items():
        try:
            canonical(value)
        except (TypeError, ValueError) as of_value:
            return f", in field {brief(repr(name))}: {of_value}"
    return f": {error}"
