"""Rows of the user's file: JSON Lines or Parquet.

Every row is checked before the run starts; a bad one is named.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from banyan.errors import InvalidInput
from banyan.recipe import Task
from services.gateway.tasks.prompt import messages
from services.gateway.tasks.size import check_size

RESERVED = "completion"  # the first argument of every reward function


def rows(task: Task, base: Path) -> list[dict[str, Any]]:
    """Return the file's rows.

    Raise InvalidInput that names the file, the line or row, and the value.
    """
    checked = list(_read(task, base))
    if not checked:
        raise InvalidInput(f"{base / Path(os.path.expanduser(task.path))} holds no rows")
    return checked


def first(task: Task, base: Path) -> dict[str, Any] | None:
    """Return the first row without reading the others; None if there are no rows."""
    return next(_read(task, base), None)


def _read(task: Task, base: Path) -> Iterator[dict[str, Any]]:
    path = base / Path(os.path.expanduser(task.path))
    if path.is_dir():
        raise InvalidInput(
            f"task.path {task.path!r} is a folder;"
            " name a file of JSON Lines or a Parquet table in it"
        )
    if not path.is_file():
        raise InvalidInput(f"task.path {task.path!r}: there is no file {path}")
    for where, row in records(path):
        yield _checked(row, where, task)


def records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield what the lines of a file hold, each with its place, unchecked."""
    parquet = path.suffix.lower() in (".parquet", ".pq")
    return _parquet(path) if parquet else _json_lines(path)


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path} line {number}", _parsed(line, f"{path} line {number}")
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path} is not UTF-8 text: it holds the byte {error.object[error.start]:#x}"
        ) from None


def _parsed(line: str, where: str) -> Any:
    try:
        return json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where} is not JSON: {_brief(line.strip())}: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value; use null")


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InvalidInput(
            f"{path}: reading Parquet needs pyarrow; pip install 'banyan[gateway]'"
        ) from None
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            row_number = 0
            for batch in table.iter_batches():
                for row in batch.to_pylist():
                    row_number += 1
                    yield f"{path} row {row_number}", row
    except (pyarrow.ArrowException, OSError) as error:
        raise InvalidInput(f"cannot read {path} as Parquet: {error}") from None


def _checked(row: Any, where: str, task: Task) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise InvalidInput(
            f"{where} is {_brief(repr(row))}; a row must be an object with named fields"
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
            f"{where} holds a value that JSON has no form for: {error}; convert it first"
        ) from None
    try:
        messages(row, task)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from None
    return row


def _brief(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
