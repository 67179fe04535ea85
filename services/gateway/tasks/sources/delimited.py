"""Rows of a CSV or TSV file: a header line with the names of the fields, and values that are texts.

Quoting is that of Python's csv module: a field with a delimiter, a quote or a line break stands in
double quotes, and a quote in it is doubled.
"""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from banyan.errors import InvalidInput
from services.gateway.tasks.sources.text_file import brief, opened

DELIMITERS = {".csv": ",", ".tsv": "\t"}
"""Delimiter by suffix of the file."""


def records(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the fields of each record by name, with the place of its first line.

    Raise InvalidInput that names the line, for a header that does not name each field once, and for
    records that have more or fewer fields or are not quoted as CSV is.
    """
    # The csv module itself must see line breaks, which it keeps inside of quotes.
    with opened(path, newline="") as file:
        found = _fields(path, file)
        header = next(found, None)
        if header is None:
            raise InvalidInput(f"{path} is empty; its first line must name the columns")
        names = _names(*header)
        for where, fields in found:
            if len(fields) != len(names):
                raise InvalidInput(_wrong_number(where, fields, names))
            yield where, dict(zip(names, fields, strict=True))


def parted_otherwise(path: Path, names: Sequence[str]) -> str:
    """Return words for a message if the only column's name looks like several ones; else none."""
    own = DELIMITERS.get(path.suffix.lower())
    others = [d for d in (",", ";", "\t", "|") if d != own and len(names) == 1 and d in names[0]]
    if own is None or not others:
        return ""
    return f"; columns of a {path.suffix} file are parted by {own!r}, and not by {others[0]!r}"


def _fields(path: Path, file: TextIO) -> Iterator[tuple[str, list[str]]]:
    """Yield the fields of each record that is not a blank line, with the place of its first."""
    reader = csv.reader(file, delimiter=DELIMITERS[path.suffix.lower()], strict=True)
    while True:
        where = f"{path} line {reader.line_num + 1}"
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InvalidInput(_unreadable(where, str(error))) from None
        if fields:
            yield where, fields


def _unreadable(where: str, cause: str) -> str:
    if "field larger" in cause:
        # The limit is the csv module's, for all of a process, so it is left as it is.
        return (
            f"{where} has a field of more than {csv.field_size_limit():,} characters, the longest"
            " that is read from CSV; if it is not one, a quote is not closed there; longer ones"
            " need JSON Lines or Parquet"
        )
    return f"{where} is not CSV: {cause}; close each quote, and double one inside of quotes"


def _names(where: str, names: Sequence[str]) -> Sequence[str]:
    empty = [number for number, name in enumerate(names, start=1) if not name.strip()]
    if empty:
        raise InvalidInput(f"{where}: column {empty[0]} has no name; name all columns there")
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise InvalidInput(
            f"{where} names two columns {brief(repr(twice[0]))}; give each a name of its own"
        )
    return names


def _wrong_number(where: str, fields: Sequence[str], names: Sequence[str]) -> str:
    counted = f"{len(fields)} field{'' if len(fields) == 1 else 's'}"
    return (
        f"{where} has {counted}, and the header names {len(names)}: {brief(', '.join(fields))};"
        " put fields that contain the delimiter into quotes"
    )
