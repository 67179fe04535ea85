"""The task of a recipe for rows that were passed from Python."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from banyan.digest import blake
from banyan.errors import InvalidInput

Rows = Iterable[str | Mapping[str, Any]] | str | Path


def path_of(dataset: Rows, folder: Path) -> str:
    """Return `task.path` for rows: what names a file or data set as it is, else a written file.

    dataset: rows as dictionaries, prompts as texts, a data frame, a data set of `datasets`, or the
        path of a file or `hf://…`
    folder: folder of written files; equal rows are one file

    Raises InvalidInput that names the row, for one that JSON has no form for.
    """
    if isinstance(dataset, str | Path):
        return str(dataset)
    lines = [_line(number, row) for number, row in enumerate(_rows(dataset))]
    if not lines:
        raise InvalidInput("dataset holds no rows; pass dictionaries, or prompts as texts")
    data = "".join(lines).encode()
    path = folder / f"{blake(data).hex()[:16]}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_bytes(data)
    partial.replace(path)
    return str(path.resolve())


def _rows(dataset: Any) -> Iterable[Any]:
    """Return the rows of what was passed; those of a data frame are its records."""
    if isinstance(dataset, Mapping):
        raise InvalidInput(
            "dataset is one mapping, and must be a list of rows: [{'prompt': …, 'answer': …}, …]"
        )
    records = getattr(dataset, "to_dict", None)
    if callable(records) and hasattr(dataset, "columns"):
        return list(records(orient="records"))
    if not isinstance(dataset, Iterable):
        raise InvalidInput(
            f"dataset is {type(dataset).__name__}, and must be rows, prompts or a path"
        )
    return dataset


def _line(number: int, row: Any) -> str:
    if isinstance(row, str):
        row = {"prompt": row}
    if not isinstance(row, Mapping):
        raise InvalidInput(
            f"row {number} of dataset is {type(row).__name__} {row!r:.60}; a row is a dictionary,"
            " or a prompt as a text"
        )
    try:
        text = json.dumps(dict(row), ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"row {number} of dataset has no form in JSON: {error}; convert it first"
        ) from None
    return f"{text}\n"


def _plain(value: Any) -> Any:
    """Return the Python number or list of NumPy's. Raises TypeError for anything else."""
    convert = getattr(value, "tolist", None)
    if callable(convert):
        return convert()
    raise TypeError(f"{type(value).__name__} {value!r:.60}")
