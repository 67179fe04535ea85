"""The tables of docs/benchmarks, written from bench/results/<bench>/*.json.

`python -m bench.pages` writes each table between its markers, `<!-- table: packing -->` and
`<!-- /table -->`. The name is the bench's for its `recorded.json`, `packing/attention` for
`attention.json` beside it, `missed` and `overview` for what the overview shows of all benches.
`python -m bench.pages --keep packing` first makes the last run of a bench its recorded figures.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.__main__ import LONG, NAMES, ONLY_WITH_CUDA, ONLY_WITH_VLLM
from bench.harness.record import (
    LATEST,
    NO_TARGET,
    RECORDED,
    RESULTS,
    Cell,
    Headline,
    Table,
    number,
    read,
    write,
)

FIGURES = Path(__file__).parent / "results"
PAGES = Path(__file__).parents[1] / "docs" / "benchmarks"
OF_RUNS = (LATEST, "cells.json")  # files that git ignores
ORDER = (*LONG, *NAMES, *ONLY_WITH_VLLM, *ONLY_WITH_CUDA)
_BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- /table -->)", re.DOTALL)
_MET = {True: "yes", False: "**no**", None: "–"}


def tables(folder: Path = FIGURES) -> dict[str, Table]:
    """Read the recorded tables by name, in the order of the benches."""
    found = [path for path in folder.glob("*/*.json") if path.name not in OF_RUNS]
    return {_name(path): read(path) for path in sorted(found, key=_place)}


def rewritten(text: str, known: Mapping[str, Table], homes: Mapping[str, str]) -> str:
    """Write the tables anew into a page's text.

    homes: the page that shows a table, by the table's name.

    Raises KeyError for a marker of a table that is not recorded.
    """

    def block(found: re.Match[str]) -> str:
        return "".join((found[1], "\n", _shown(found[2], known, homes), "\n\n", found[3]))

    return _BLOCK.sub(block, text)


def homes(folder: Path = PAGES) -> dict[str, str]:
    """Find the page that shows each table."""
    pages = sorted(folder.glob("*.md"))
    return {found[2]: page.name for page in pages for found in _BLOCK.finditer(page.read_text())}


def keep(name: str, results: Path = RESULTS, figures: Path = FIGURES) -> list[str]:
    """Make the last run of a bench its recorded figures; return its other tables, which stay.

    Raises RuntimeError where the run is not of one commit that can be named.
    """
    latest = read(results / name / LATEST)
    if not re.fullmatch(r"[0-9a-f]{40}", latest.commit):
        raise RuntimeError(f"{name}: not of a commit alone; measure in a clean checkout")
    write(figures / name / RECORDED, latest)
    others = [path for path in (figures / name).glob("*.json") if path.name not in OF_RUNS]
    return sorted(_name(path) for path in others if path.name != RECORDED)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables into the pages."""
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description=main.__doc__)
    about = "record the last run of a bench"
    parser.add_argument("--keep", metavar="BENCH", nargs="+", default=[], help=about)
    for name in parser.parse_args(arguments).keep:
        others = keep(name)
        print(f"{name}: recorded. Read its page again: the text is about the former figures.")
        if others:
            print(f"{name}: remove the tables that this run replaces: {', '.join(others)}")
    known, pages = tables(), homes()
    for page in sorted(PAGES.glob("*.md")):
        try:
            page.write_text(rewritten(page.read_text(), known, pages))
        except KeyError as error:
            sys.exit(f"{page.name} shows {error}, which is not recorded: remove its markers")


def _name(path: Path) -> str:
    return path.parent.name if path.name == RECORDED else f"{path.parent.name}/{path.stem}"


def _place(path: Path) -> tuple[int, str, bool, str]:
    """Sort by bench, its recorded table first."""
    bench = path.parent.name.partition("-")[0]
    place = ORDER.index(bench) if bench in ORDER else len(ORDER)
    return place, path.parent.name, path.name != RECORDED, path.name


def _shown(name: str, known: Mapping[str, Table], pages: Mapping[str, str]) -> str:
    if name == "overview":
        return _overview(known, pages)
    if name == "missed":
        return _missed(known, pages)
    return _table(known[name])


def _table(table: Table) -> str:
    """Write a table, how it was measured, and its notes."""
    about = [table.machine, table.date, table.commit and f"commit {_short(table.commit)}"]
    parts = [f"**{table.title}**"]
    if table.rows:
        parts.append(_grid(table.columns, table.rows))
    command = f"`{table.command}`: " if table.command else ""
    measured = f"{command}{', '.join(part for part in about if part)}."
    parts.append(measured[0].upper() + measured[1:])
    if table.notes:
        parts.append("\n".join(f"- {note}" for note in table.notes))
    return "\n\n".join(parts)


def _overview(known: Mapping[str, Table], pages: Mapping[str, str]) -> str:
    columns = ("bench", "what is compared", "figure", "target", "met", "commit", "date", "command")
    rows = [
        (
            *_row(name, entry, pages),
            _MET[entry.met],
            _short(table.commit),
            table.date,
            f"`{table.command}`",
        )
        for name, table, entry in _headlines(known)
    ]
    return _grid(columns, rows)


def _missed(known: Mapping[str, Table], pages: Mapping[str, str]) -> str:
    missed = [(name, entry) for name, _, entry in _headlines(known) if entry.met is False]
    if not missed:
        return "No recorded figure misses its target."
    rows = [_row(name, entry, pages) for name, entry in missed]
    return _grid(("bench", "what is compared", "figure", "target"), rows)


def _headlines(known: Mapping[str, Table]) -> Iterator[tuple[str, Table, Headline]]:
    for name, table in known.items():
        yield from ((name, table, entry) for entry in table.headline)


def _row(name: str, entry: Headline, pages: Mapping[str, str]) -> tuple[str, str, str, str]:
    """Write the cells that both tables of the overview have."""
    bench = name.partition("/")[0]
    return f"[{bench}]({pages[name]})", entry.what, entry.figure, entry.target or NO_TARGET


def _grid(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    lines: list[Sequence[Cell]] = [columns, ["---"] * len(columns), *rows]
    return "\n".join(_line(line) for line in lines)


def _line(cells: Sequence[Cell]) -> str:
    written = (f" {_cell(cell)} " if cell != "" else " " for cell in cells)
    return f"|{'|'.join(written)}|"


def _cell(cell: Cell) -> str:
    return cell.replace("|", "\\|") if isinstance(cell, str) else number(cell)


def _short(commit: str) -> str:
    return commit[:7]


if __name__ == "__main__":
    main()
