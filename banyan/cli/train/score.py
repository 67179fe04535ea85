"""`banyan score`: what a recipe's scorers make of a completion, in seconds and without a model."""

import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from banyan.cli import recipes
from banyan.cli.options import Json
from banyan.cli.render.console import emit, out, table_of
from banyan.cli.train import search_path
from banyan.cli.train.file_locations import located
from banyan.digest import canonical, row_digest
from banyan.errors import InvalidInput
from banyan.plugins import Scored
from banyan.recipe import Recipe
from banyan.text.printable import PrintableFormatter

_COLUMNS = ("completion", "scorer", "value", "parts", "reason", "seconds", "version")
_LEAST_ID = 6  # characters of a row's id
_SHOWN = 200  # characters of a row


def score(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name or file of a recipe.")],
    completions: Annotated[
        list[str] | None,
        typer.Option("--completion", help="Text to score; several are a group."),
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("--completion-file", help="File with a text to score; - for standard input."),
    ] = None,
    row: Annotated[
        str, typer.Option("--row", help="Row of the task: its number from 0, or its id.")
    ] = "0",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, such as filter.0.settings.tag=a")
    ] = None,
    as_json: Json = False,
) -> None:
    """Score a completion of a row with all scorers of a recipe, as the verifier does.

    The reward is made of the scores of `filter`; those of `eval.filter` alone are marked (eval).
    Exit status: 0 scored, 1 a scorer gave no score, 2 bad input.
    """
    texts = [*(completions or ()), *map(_read, files or ())]
    if not texts:
        raise InvalidInput("give a text with --completion or --completion-file")
    _show_logs()
    from services.verifier.preview import trial_scores

    with search_path.searched(recipes.folders(recipes.find(recipe))):
        read = located(recipes.read(recipe, overrides or ()), recipes.find(recipe))
        number, found = chosen_row(read, row)
        results = asyncio.run(trial_scores.score(read, texts, found))
    shown = [
        {"reward": reward, "scores": [_shown(score) for score in scores]}
        for scores, reward in results
    ]
    identity = row_digest(found).hex()
    if as_json:
        emit({"row": number, "id": identity, "fields": found, "completions": shown}, True)
    else:
        _print(f"row {number} ({identity[:12]}): {canonical(found).decode()[:_SHOWN]}", shown)
    if any(result["reward"] is None for result in shown):
        raise typer.Exit(1)


def _show_logs() -> None:
    """Show warnings, and what a scorer prints."""
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(PrintableFormatter("%(message)s"))
    logging.basicConfig(level="WARNING", handlers=[lines], force=True)
    logging.getLogger("services.verifier.sandbox.lane").setLevel("INFO")


def _read(file: Path) -> str:
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is no UTF-8 text: {error.reason} at {error.start}") from None


def chosen_row(recipe: Recipe, wanted: str) -> tuple[int, dict[str, Any]]:
    """Return a row of the task and its number. Raises InvalidInput if there is none."""
    from services.gateway import tasks

    rows = tasks.load(recipe.task, Path.cwd())
    is_number = wanted.isascii() and wanted.isdecimal()
    if is_number and len(wanted) <= len(str(len(rows))) and int(wanted) < len(rows):
        return int(wanted), rows[int(wanted)]
    if is_number and len(wanted) < _LEAST_ID:
        raise InvalidInput(f"--row {wanted}: the task has {len(rows)} rows, 0 to {len(rows) - 1}")
    ids = [row_digest(row).hex() for row in rows] if len(wanted) >= _LEAST_ID else []
    found = [number for number, identity in enumerate(ids) if identity.startswith(wanted.lower())]
    if not found:
        raise InvalidInput(
            f"--row {wanted}: none of the task's {len(rows)} rows has such an id; give a number "
            f"from 0, or {_LEAST_ID} or more characters of an id"
        )
    return found[0], rows[found[0]]


def _shown(score: Any) -> dict[str, Any]:
    outcome = score.verdict.outcome
    is_scored = isinstance(outcome, Scored)
    return {
        "scorer": score.scorer if score.counts else f"{score.scorer} (eval)",
        "value": outcome.value if is_scored else None,
        "parts": dict(outcome.parts) if is_scored else {},
        "reason": "" if is_scored else outcome.reason,
        "seconds": round(score.seconds, 4),
        "version": score.verdict.version,
    }


def _print(row: str, results: Sequence[dict[str, Any]]) -> None:
    out.print(row, markup=False, soft_wrap=True)
    rows = [
        {"completion": number, **score}
        for number, result in enumerate(results)
        for score in result["scores"]
    ]
    out.print(table_of(rows, _COLUMNS if len(results) > 1 else _COLUMNS[1:]))
    for number, result in enumerate(results):
        name = f"reward of completion {number}" if len(results) > 1 else "reward"
        value = "none" if result["reward"] is None else f"{result['reward']:.6g}"
        out.print(f"{name}: {value}")
