"""`banyan tools`: the text that tells a model of a recipe's tools."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from banyan import registry
from banyan.cli import recipes
from banyan.cli.render.console import err, out
from banyan.cli.train import scorer_checks, search_path
from banyan.cli.train.file_locations import located
from banyan.cli.train.score import chosen_row
from banyan.errors import InvalidInput
from banyan.recipe import Environment, Recipe


def tools(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name or file of a recipe.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE of the recipe; may be repeated.")
    ] = None,
    calls: Annotated[
        list[str] | None,
        typer.Option("--call", help="Text with a call to answer instead; several are an episode."),
    ] = None,
    row: Annotated[
        str, typer.Option("--row", help="With --call: row of the task, by number from 0 or id.")
    ] = "0",
) -> None:
    """Print the text that tells a model of a recipe's tools, for task.system; or answer calls.

    Calls are answered as those of a path are, one after the other, without a model. Tools that
    change something outside are not called.
    """
    file = recipes.find(recipe)
    loaded = located(recipes.read(recipe, overrides or ()), file)
    part = loaded.environment
    if part is None:
        raise InvalidInput(f"{recipe} has no environment, so there is nothing to tell of it")
    if calls:
        with search_path.searched(recipes.folders(file)):
            asyncio.run(_answer(loaded, part, chosen_row(loaded, row)[1], calls))
        return
    about = _about(loaded, part, recipes.folders(file))
    if not about:
        raise InvalidInput(
            f"environment {part.name} has no text about itself (a class of your own gives one with"
            " about()); show a call of it in task.system or in the prompts"
        )
    out.print(about, markup=False, soft_wrap=True)


def _about(recipe: Recipe, part: Environment, folders: Sequence[Path]) -> str:
    """Return what an environment says about itself; of a class, on the first row."""
    if part.hosting is None:
        return str(registry.environment(part.name, part.settings).about())
    from services.verifier.preview import environment_trial

    first = scorer_checks.first_row(recipe.task) or {}
    with search_path.searched(folders):
        trial = asyncio.run(
            environment_trial.tried(part.name, part.settings, part.hosting, first, 0)
        )
    return trial.about


async def _answer(
    recipe: Recipe, part: Environment, row: Mapping[str, Any], calls: Sequence[str]
) -> None:
    from services.verifier.preview import trial_steps

    answered = 0
    async for answer in trial_steps.answers(part, row, recipe.seed, calls):
        out.print(trial_steps.shown(part, answer), markup=False, soft_wrap=True)
        answered += 1
    if left := len(calls) - answered:
        err.print(f"the episode was over before the last {left} of {len(calls)} calls")
