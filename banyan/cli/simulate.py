"""`banyan simulate`: a recipe's tree policy on the scripted engine, in a second, without a model or a server."""

from typing import Annotated

import typer

from banyan.cli import recipes, searchpath
from banyan.cli.options import Json
from banyan.cli.output import emit


def simulate(
    recipe: Annotated[str, typer.Argument(help="Name or file of a recipe.")],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, such as generate.policy=treepo")] = None,
    as_json: Json = False,
) -> None:
    """Grows one group's trees of a recipe and prints what they cost against independent samples.

    Control is not simulated: a tree that grows by the room it is given gets all that its prompt brings to the pot, at once.

    Tokens of rollouts that the policy stops count, and the saving is against the leaves that are left: it may be below 0.
    """
    from services.rollout.simulate import simulate as run

    with searchpath.searched(recipes.folders(recipes.find(recipe))):
        result = run(recipes.read(recipe, overrides or ()))
    emit(result, as_json)
