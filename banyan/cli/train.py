"""`banyan train`: the whole system on this machine, one run, from one command."""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
import yaml

from banyan.cli import recipes
from banyan.cli.options import DEFAULT_STATE, State
from banyan.cli.output import err
from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.recipe_file import load


def train(
    recipe: Annotated[str, typer.Argument(help="Name or file of a recipe; not needed with --resume.")] = "",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, such as budget.steps=4")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved recipe and stop.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest run that is not over.")] = False,
    listen: Annotated[str, typer.Option(help="host:port at which nodes may join, such as 10.0.0.1:7443.")] = "",
    state: State = DEFAULT_STATE,
) -> None:
    """Trains a recipe with all services on this machine."""
    if resume and (recipe or overrides):
        raise InvalidInput("--resume goes on with the newest run as it was created; leave recipe and --set out")
    if not resume and not recipe:
        raise InvalidInput("name a recipe, such as recipes/quickstart.yaml, or use --resume")
    loaded = None if resume else _absolute(load(recipes.find(recipe), overrides or ()), recipes.find(recipe))
    if dry_run:
        _print(loaded)
        return
    if loaded is not None:
        _check_listen(loaded, listen)
        _prepare(loaded)
    logging.basicConfig(level="WARNING", format="%(levelname)s %(message)s")
    from banyan.cli.session import Session

    folders = [str(Path.cwd())] + ([str(recipes.find(recipe).resolve().parent)] if recipe else [])
    status = asyncio.run(Session(state, loaded, listen, os.pathsep.join(folders)).run())
    sys.exit(status)


def _print(recipe: Recipe | None) -> None:
    if recipe is None:
        raise InvalidInput("--dry-run needs a recipe")
    print(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True), end="")


def _absolute(recipe: Recipe, file: Path) -> Recipe:
    """Files that a recipe names are relative to the recipe, or else to the working folder."""
    if not recipe.task.path:
        return recipe
    beside = file.parent / recipe.task.path
    path = beside if beside.exists() else Path(recipe.task.path)
    if not path.exists():
        raise InvalidInput(f"{file}: task.path: there is no file {recipe.task.path!r}, neither beside the recipe nor here")
    task = recipe.task.model_copy(update={"path": str(path.resolve())})
    return recipe.model_copy(update={"task": task})


def _check_listen(recipe: Recipe, listen: str) -> None:
    if listen and recipe.deterministic:
        raise InvalidInput("--listen: the recipe is deterministic, so one node samples all of it; leave --listen out")


def _prepare(recipe: Recipe) -> None:
    """Finds the model before anything starts, so that a missing one is one clear message."""
    from services.chassis import models

    if recipe.model == models.SMOLLM2 and not (models.cache() / recipe.model).is_dir():
        err.print(f"converting {recipe.model} once …")
    models.resolve(recipe.model, tokenizer=recipe.resources.engine == "torch")
