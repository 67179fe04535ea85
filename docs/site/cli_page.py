"""The page of the command line: `python -m docs.site.cli_page` prints docs/cli.md."""

import inspect
import sys
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from banyan.cli.main import app

_HEAD = """# The command line

`banyan COMMAND --help` prints the same. Exit status: 0 done, 1 failed, 2 bad input, 130
interrupted. Tables fit a terminal of 80 columns; into a file or a pipe each row is one line, and
`--json` prints JSON where a command has it. Of an id the beginning is enough, where no other begins
so.

This page is written from banyan/cli (`make cli-page`); a test compares the two.
"""


def markdown() -> str:
    """Return the page."""
    lines = [_HEAD, "| command | does |", "| --- | --- |"]
    found = list(_commands(get_command(app), "banyan"))
    for name, command in found:
        first = _help(command).partition(". ")[0].rstrip(".")
        lines.append(f"| [`{name}`](#{_anchor(name)}) | {_cell(first)} |")
    for name, command in found:
        lines += ["", *_section(name, command)]
    return "\n".join(lines) + "\n"


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands below one, with their whole names."""
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    for key, each in below.items():
        yield from _commands(each, f"{name} {key}")


def _help(command: Any) -> str:
    return " ".join(inspect.cleandoc(command.help or "").split())


def _section(name: str, command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    usage = " ".join([name, *(_usage(p) for p in arguments), *(["[OPTIONS]"] if options else [])])
    about = (" ".join(words.split()) for words in inspect.cleandoc(command.help).split("\n\n"))
    lines = [f"## {name}", "", "\n\n".join(about), "", f"    {usage}"]
    if arguments or options:
        lines += ["", "| argument or option | default | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{_usage(p)}` | {_default(p)} | {_cell(p.help)} |" for p in arguments]
    return lines + [f"| `{_names(p)}` | {_default(p)} | {_cell(p.help)} |" for p in options]


def _usage(argument: Any) -> str:
    word = (argument.metavar or argument.name.upper()).strip("[]")
    return word if argument.required else f"[{word}]"


def _names(option: Any) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} {option.name.upper()}"


def _default(param: Any) -> str:
    if param.required:
        return "required"
    value = None if callable(param.default) else param.default
    return "" if value in (None, "", False, (), []) else f"`{_cell(str(value))}`"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(markdown())
