"""Rows of a Parquet table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from banyan.errors import InvalidInput
from banyan.runtime.distribution import install
from services.gateway.tasks.sources import arrow


def records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each row as Python values, with its place.

    Raise InvalidInput that names the file.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InvalidInput(f"{path}: reading Parquet needs pyarrow; {install('gateway')}") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            row_number = 0
            for batch in table.iter_batches():
                for row in arrow.rows(batch, str(path), row_number):
                    row_number += 1
                    yield f"{path} row {row_number}", row
    except (pyarrow.ArrowException, OSError) as error:
        raise InvalidInput(
            f"cannot read {path} as Parquet: {error}; write it anew, or use JSON Lines"
        ) from None
