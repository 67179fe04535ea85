"""Output of commands: a table for people, JSON for programs, errors without a traceback."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from banyan.text.printable import printable, printable_json

_GAP = 2  # cells between two columns
_WIDE = 100_000  # without a terminal a line is a record and never folded


class _PrintableConsole(Console):
    """Console whose text never controls the terminal; its own styles and cursor moves stay."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render, with every text made printable."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    terminal = stream is not None and stream.isatty()
    return _PrintableConsole(
        stderr=stderr, highlight=False, emoji=False, width=None if terminal else _WIDE
    )


out = _console(stderr=False)
err = _console(stderr=True)
_IDS = ("id", "segment", "node", "name", "service")


def stream(lines: Iterable[str]) -> None:
    """Print lines of JSON as they come, until their reader ends, as `head` does."""
    try:
        for line in lines:
            print(printable_json(line))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader is gone: discard the rest of the output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def emit(value: Any, as_json: bool, columns: Sequence[str] = ()) -> None:
    """Print a JSON-able result; a list of mappings becomes a table of `columns`."""
    if as_json:
        emit_json(value)
        return
    if isinstance(value, dict):
        for key, item in value.items():
            out.print(Text.assemble((key, "bold"), f": {_cell(item)}"), soft_wrap=True)
        return
    if not value:
        out.print("none")
        return
    out.print(table_of(value, columns))


def emit_lines(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print rows a line each; on a narrow terminal the words of the last column end in …."""
    *first, last = columns
    widths = (max(cell_len(_cell(row.get(c))) for row in [*rows, {c: c}]) for c in first)
    rest = max(cell_len(last), out.width - sum(width + _GAP for width in widths))
    cut = [{**row, last: shortened(_cell(row.get(last)), rest)} for row in rows]
    out.print(table_of(cut, columns) if rows else "none")


def emit_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    print(printable_json(json.dumps(value, ensure_ascii=False, allow_nan=False)))


def emit_text(text: str) -> None:
    """Print a text of many lines as it is, with its control characters made visible."""
    print(printable(text), end="")


def emit_yaml(value: Any) -> None:
    """Print plain data as YAML, in the order of its keys, with control characters escaped."""
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    if printable(text) != text:
        text = yaml.safe_dump(value, sort_keys=False, allow_unicode=False)
    print(text, end="")


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    """Return a table of some columns.

    Ids stay whole, so that they can be copied; other words are folded on a narrow terminal.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in _IDS or column.endswith("_id"))
    for row in rows:
        # Text, because the words of a model must not be read as markup.
        table.add_row(*(Text(_cell(row.get(c))) for c in columns))
    return table


def shortened(text: str, width: int) -> str:
    """Return a text that takes at most so many cells of a terminal, cut with … if it is longer."""
    cut = Text(text)
    cut.truncate(width, overflow="ellipsis")
    return cut.plain


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (dict, list)):
        return printable(json.dumps(value, ensure_ascii=False))
    return printable(str(value))
