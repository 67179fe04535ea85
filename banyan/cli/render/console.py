"""Output of commands: a table for people, JSON for programs, errors without a traceback."""

import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
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

    def on_broken_pipe(self) -> None:
        """Leave it to `main`, for which a reader that has enough, such as head, is no failure."""
        raise BrokenPipeError


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    terminal = stream is not None and stream.isatty()
    # In a kernel of Jupyter rich would make HTML of each line; and the kernel sets FORCE_COLOR, by
    # which rich believes in a terminal: moves of its cursor would be part of the notebook.
    kernel = "ipykernel" in sys.modules
    return _PrintableConsole(
        stderr=stderr,
        highlight=False,
        emoji=False,
        width=None if terminal else _WIDE,
        force_jupyter=False,
        force_terminal=False if kernel else None,
    )


out = _console(stderr=False)
err = _console(stderr=True)
_IDS = ("id", "segment", "node", "name", "service", "key", "metric", "scorer", "label", "check")
_EMPTY: tuple[Any, ...] = (None, "", {}, [])
_SHORT = 16  # cells that are never folded
_TEXT = 20  # least width of a column of longer words


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
            prose(f": {_cell(item)}", head=key)
        return
    if not value:
        out.print("none")
        return
    out.print(table_of(value, columns))


def prose(text: str, head: str = "", style: str = "", hang: str = "") -> None:
    """Print words, folded between them on a terminal; longer ones, such as paths, stay whole.

    head: words before them, in bold
    hang: what lines behind the first begin with
    """
    lines = textwrap.wrap(
        f"{head}{text}",
        out.width,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        subsequent_indent=hang,
    )
    for number, line in enumerate(lines or [""]):
        shown = Text(line, style)
        if head and not number:
            shown.stylize("bold", 0, len(head))
        out.print(shown, soft_wrap=True)


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
    """Return a table of some columns that fits the terminal.

    Ids, numbers and other short cells stay whole, so that they can be read and copied; longer words
    are folded. Where these have no room, columns without content are left out, and if that is not
    enough a row becomes a block with a line for each column.
    """
    if not _fits(rows, columns):
        columns = [c for c in columns if any(row.get(c) not in _EMPTY for row in rows)] or columns
    if not _fits(rows, columns):
        return _blocks(rows, columns)
    table = Table(box=None, pad_edge=False, header_style="bold")
    crowded = sum(map(_natural(rows), columns)) - _GAP > out.width
    for column in columns:
        whole = not _is_text(rows, column)
        width = _least(rows, column) if whole and crowded else None
        head = column.replace("_", " ")
        table.add_column(head, overflow="fold", width=width, no_wrap=whole and not crowded)
    for row in rows:
        # Text, because the words of a model must not be read as markup.
        table.add_row(*(Text(_cell(row.get(c))) for c in columns))
    return table


def _blocks(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", min_width=max(cell_len(column) for column in columns))
    table.add_column(overflow="fold")
    for number, row in enumerate(rows):
        if number:
            table.add_row("", "")
        for column in columns:
            table.add_row(column.replace("_", " "), Text(_cell(row.get(column))))
    return table


def _fits(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> bool:
    return sum(_least(rows, column) + _GAP for column in columns) - _GAP <= out.width


def _least(rows: Sequence[Mapping[str, Any]], column: str) -> int:
    """Return the width below which a column is hard to read."""
    widest = _widest(rows, column)
    if _is_text(rows, column):
        return min(widest, _TEXT)
    return max(widest, *(cell_len(word) for word in column.split("_")))


def _is_text(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    """Return whether the words of a column may be folded."""
    return not (column in _IDS or column.endswith("_id")) and _widest(rows, column) > _SHORT


def _natural(rows: Sequence[Mapping[str, Any]]) -> Callable[[str], int]:
    """Return the width of a column, with its gap, that folds nothing."""
    return lambda column: max(_widest(rows, column), cell_len(column)) + _GAP


def _widest(rows: Sequence[Mapping[str, Any]], column: str) -> int:
    return max((cell_len(_cell(row.get(column))) for row in rows), default=0)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (dict, list)):
        return printable(json.dumps(value, ensure_ascii=False))
    return printable(str(value))
