"""Readers of a task's rows: files by their suffix."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from services.gateway.tasks.sources import delimited, json_lines, parquet


def of_file(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield what the rows of a file hold, each with its place, unchecked."""
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        return parquet.records(path)
    if suffix in delimited.DELIMITERS:
        return delimited.records(path)
    return json_lines.records(path)
