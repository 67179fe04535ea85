"""Texts of models, nodes and dead letters reach a terminal as text alone, from every command."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from banyan.cli.render import console as output
from banyan.text.printable import (
    PrintableFormatter,
    encodable,
    printable,
    printable_json,
    textual,
)
from tests.cli.command import banyan

HOSTILE = "a\x1b]0;owned\x07\x1b[2Kb\x9b31mc\x7fd\u202ee\u2066f\u2028g\ufeffh\U000e0041i\rj\x00k"
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
    "\u2028\u2029\ufeff\U000e0000-\U000e007f]"
)


def test_names_between_colons_are_no_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    output._console(stderr=False).print("doors:key: reset raised KeyError")
    assert capsys.readouterr().out == "doors:key: reset raised KeyError\n"


def test_a_character_that_a_terminal_obeys_becomes_one_that_it_shows() -> None:
    assert printable("\x1b[31m\x07\x7f") == "␛[31m␇␡"
    assert printable("\x9b\u202e\u2066\ud800") == "����"
    assert printable("a\tb\nc") == "a\tb\nc"
    assert printable("naïve 数 👩\u200d🔬 é") == "naïve 数 👩\u200d🔬 é"


@given(st.text(st.characters(codec=None)))
def test_text_of_any_kind_keeps_its_length_and_commands_nothing(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text) and not OBEYED.search(shown)
    shown.encode()


@given(st.text())
def test_json_is_read_back_as_it_was(text: str) -> None:
    line = printable_json(json.dumps({"text": text}, ensure_ascii=False))
    assert json.loads(line) == {"text": text} and not OBEYED.search(line)


def _renderables() -> list[Any]:
    table = Table(HOSTILE)
    table.add_row(HOSTILE)
    tree = Tree(HOSTILE)
    tree.add(Text(HOSTILE))
    return [
        HOSTILE,
        Text(HOSTILE, "bold"),
        table,
        tree,
        Group(Panel(HOSTILE), Text.assemble((HOSTILE, "red"))),
    ]


@pytest.mark.parametrize("renderable", _renderables(), ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("console", [output.out, output.err], ids=["out", "err"])
def test_a_console_prints_no_commands_but_its_own(
    console: Any, renderable: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    console.print(renderable, markup=False)
    text_out = "".join(capsys.readouterr())
    assert "owned" in text_out and not OBEYED.search(text_out)


def test_results_are_printable_for_people_and_programs(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"reason": HOSTILE, "parts": {HOSTILE: 1}}]
    output.emit(rows, False, ("reason", "parts"))
    output.emit(rows[0], False)
    output.emit(rows, True)
    output.stream([json.dumps(rows, ensure_ascii=False)])
    output.emit_yaml({"reason": HOSTILE})
    text_out = capsys.readouterr().out
    assert not OBEYED.search(text_out)
    as_json, streamed, *as_yaml = text_out.splitlines()[-3:]
    assert json.loads(as_json) == json.loads(streamed) == rows
    assert yaml.safe_load("\n".join(as_yaml)) == {"reason": HOSTILE}


def test_log_lines_are_printable() -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        trace = (type(error), error, error.__traceback__)
    record = logging.LogRecord("node", logging.ERROR, __file__, 1, "it said %s", (HOSTILE,), trace)
    text_out = PrintableFormatter("%(message)s").format(record)
    assert text_out.count("owned") == 2 and not OBEYED.search(text_out)


def test_commands_print_through_one_module() -> None:
    """A command that prints by itself would print the control characters of strangers."""
    folder = Path(output.__file__).parents[1]
    allowed = {"console.py", "main.py"}  # main prints its own version
    printing = re.compile(r"\bprint\(|\bConsole\(|typer\.echo|sys\.stdout\.write")
    result = {
        path.name: line
        for path in folder.rglob("*.py")
        for line in path.read_text().splitlines()
        if path.name not in allowed
        and printing.search(re.sub(r"\b(out|err)\.print\(", "", line))
        and "def " not in line
    }
    assert result == {}


@given(st.text(st.characters(codec=None)))
def test_a_text_is_textual_where_utf_8_has_it(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        assert not textual(text)
        assert textual(encodable(text)) and len(encodable(text)) == len(text)
    else:
        assert textual(text) and encodable(text) == text


@pytest.mark.parametrize(
    "command", [("runs", "show"), ("runs", "cancel"), ("trees", "ls"), ("doctor",), ("train",)]
)
def test_an_argument_in_another_encoding_is_named(command: tuple[str, ...], tmp_path: Path) -> None:
    """A shell's bytes that are no UTF-8 become half characters, which no message can carry."""
    (tmp_path / "store.sqlite").touch()
    text_out = banyan(*command, "caf\udce9", "--state", tmp_path)
    assert (text_out.returncode, text_out.stdout) == (2, "")
    assert text_out.stderr.startswith(
        "error: the argument 'caf\\udce9' is no UTF-8 text; name it otherwise"
    )
