"""`banyan train`: the whole system on this machine, one run, from one command."""

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from banyan.cli import recipes
from banyan.cli.options import DEFAULT_STATE, State
from banyan.cli.render.console import emit, emit_yaml, err
from banyan.cli.store import reading
from banyan.cli.train import inputs, scorer_checks, search_path
from banyan.cli.train import resume as resumable
from banyan.cli.train.file_locations import located
from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.text.printable import PrintableFormatter

if TYPE_CHECKING:
    from services.gateway.tasks.dataset import Examples


_RecipeOrNone = Annotated[
    str,
    typer.Argument(metavar="[RECIPE]", help="Name or file of a recipe; not needed with --resume."),
]


def train(
    recipe: _RecipeOrNone = "",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, such as budget.steps=4")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and print the resolved recipe, and stop.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the newest run that is not over, or failed."),
    ] = False,
    run_id: Annotated[
        str, typer.Option("--run", help="With --resume: the run, by the beginning of its id.")
    ] = "",
    listen: Annotated[
        str, typer.Option(help="host:port at which nodes may join, such as 10.0.0.1:7443.")
    ] = "",
    state: State = DEFAULT_STATE,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --dry-run: print the recipe as JSON.")
    ] = False,
) -> None:
    """Train a recipe with all services on this machine."""
    resume = resume or bool(run_id)
    _check_options(recipe, overrides, resume, json_without_dry_run=as_json and not dry_run)
    loaded = None if resume else _loaded(recipe, overrides or ())
    folders = recipes.folders(recipes.find(recipe)) if recipe else [Path.cwd()]
    if loaded is not None:
        inputs.check_listen(loaded, listen)
        scorer_checks.check(loaded, folders, called=True, shown=dry_run)
    if dry_run:
        if loaded is None:
            raise InvalidInput("--dry-run needs a recipe")
        _print(loaded, as_json, _check_inputs(loaded))
        return
    _check_start(loaded, run_id, state, folders)
    lines = logging.StreamHandler()
    lines.setFormatter(PrintableFormatter("%(levelname)s %(message)s"))
    logging.basicConfig(level="WARNING", handlers=[lines])
    from banyan.cli.train.session import Session

    path = search_path.remembered(state, folders)
    status = asyncio.run(
        Session(state=state, recipe=loaded, listen=listen, path=path, run_id=run_id).run()
    )
    sys.exit(status)


def _loaded(recipe: str, overrides: Sequence[str]) -> Recipe:
    loaded = located(recipes.read(recipe, overrides), recipes.find(recipe))
    inputs.announce(loaded.task)
    return loaded


def _check_options(
    recipe: str, overrides: list[str] | None, resume: bool, json_without_dry_run: bool
) -> None:
    if resume and (recipe or overrides):
        raise InvalidInput(
            "--resume goes on with a run as it was created; leave recipe and --set out; to train"
            " its model further, banyan export it and begin a run with --set model=FOLDER"
        )
    if not resume and not recipe:
        raise InvalidInput("name a recipe, such as quickstart, or use --resume")
    if json_without_dry_run:
        raise InvalidInput(
            "--json goes with --dry-run; banyan runs watch RUN --json tells a run's progress to "
            "programs"
        )


def _check_start(recipe: Recipe | None, run_id: str, state: Path, folders: Sequence[Path]) -> None:
    """Check the inputs of a new run, or without a recipe those of the run to resume."""
    if recipe is not None:
        inputs.prepare(recipe)
    elif not (state / "store.sqlite").exists() and not os.environ.get("BANYAN_DATABASE"):
        raise resumable.nothing(run_id, state)
    else:
        err.print(f"reading the runs in {state}", markup=False, soft_wrap=True)
        _check_resumed(state, run_id, folders)


def _print(recipe: Recipe, as_json: bool, examples: "Examples") -> None:
    from banyan.cli.train import row_counts

    data = recipe.model_dump(mode="json")
    if as_json:
        emit(data, True)
    else:
        emit_yaml(data)
    environment = ", its environment" if recipe.environment else ""
    folder, fetched = _of_model(recipe)
    err.print(f"dry run: the recipe, its rows, its scorers{environment}{folder} are all valid")
    if fetched:
        err.print(f"  {fetched}", markup=False, soft_wrap=True)
    err.print(f"  {row_counts.split(len(examples.train), len(examples.held_out))}", markup=False)
    for warning in row_counts.doubtful(examples):
        err.print(f"  {warning}", markup=False, soft_wrap=True)


def _of_model(recipe: Recipe) -> tuple[str, str]:
    """Return what was checked of the model, and what is still to come."""
    from services.chassis import models

    if models.present(recipe.model) is not None:
        return " and its model's folder", ""
    return "", f"model {recipe.model} is not here: a run fetches it as it begins; not checked"


def _check_inputs(recipe: Recipe) -> "Examples":
    """Check the inputs that a run would refuse as it begins; return its rows.

    These are rows, the model's folder and devices. Nothing is fetched or converted.
    """
    from services.chassis import models
    from services.gateway.tasks import dataset

    inputs.check_machine(recipe)
    models.check(recipe.model, tokenizer=recipe.resources.engine == "torch")
    return dataset.read(recipe, Path.cwd())


def _check_resumed(state: Path, run_id: str, folders: Sequence[Path]) -> None:
    """Check the inputs of a run before anything of it starts.

    So an error leaves the run as it is.
    """
    from services.gateway.tasks import file

    with reading(state) as client:
        run = resumable.chosen(client.runs(), run_id, state)
    recipe = Recipe.model_validate_json(run.recipe_json, strict=False)
    inputs.announce(recipe.task)
    try:
        inputs.prepare(recipe)
        if recipe.task.name == "file" and not inputs.is_of_hub(recipe.task):
            file.first(recipe.task, Path.cwd())
        scorer_checks.check(
            recipe, [Path(folder) for folder in search_path.remembered(state, folders)]
        )
    except InvalidInput as error:
        raise InvalidInput(f"run {run.run_id} cannot go on, and stays as it is: {error}") from None
