"""How commands print: a table for people, JSON for programs; errors in one message, without a traceback."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDE = 100_000  # where nobody looks, a line is a record: it is never folded


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    terminal = stream is not None and stream.isatty()
    return Console(stderr=stderr, highlight=False, width=None if terminal else _WIDE)


out = _console(stderr=False)
err = _console(stderr=True)
_IDS = ("id", "segment", "node", "name", "service")


def stream(lines: Iterable[str]) -> None:
    """Prints lines as they come, until nobody reads them: `head` that has enough is no failure of ours."""
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to be written has nowhere to go


def emit(value: Any, as_json: bool, columns: Sequence[str] = ()) -> None:
    """Prints a result. `value` is JSON-able; a list of mappings becomes a table of `columns`."""
    if as_json:
        print(json.dumps(value, ensure_ascii=False, allow_nan=False))
        return
    if isinstance(value, dict):
        for key, item in value.items():
            out.print(Text.assemble((key, "bold"), f": {_cell(item)}"), soft_wrap=True)
        return
    if not value:
        out.print("none")
        return
    out.print(table_of(value, columns))


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    """A table of some columns. Ids stay whole, so that they can be copied; other words give way on a narrow terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in _IDS or column.endswith("_id"))
    for row in rows:
        table.add_row(*(Text(_cell(row.get(c))) for c in columns))  # a model's words are no markup
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
