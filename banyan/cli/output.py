"""How commands print: a table for people, JSON for programs; errors in one message, without a traceback."""

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


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
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in value:
        table.add_row(*(Text(_cell(row.get(c))) for c in columns))  # a model's words are no markup
    out.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
