"""`banyan simulate`: a recipe's tree policy on the scripted engine, and its control on made-up rollouts, in seconds."""

from pathlib import Path
from typing import Annotated

import typer

from banyan.cli import recipes
from banyan.cli.options import Json
from banyan.cli.render.console import emit
from banyan.cli.train import search_path


def simulate(
    recipe: Annotated[str, typer.Argument(help="Name or file of a recipe.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, such as generate.policy=treepo")
    ] = None,
    as_json: Json = False,
) -> None:
    """Grows one group's trees of a recipe, and says what its control did with the groups of some steps.

    Trees: what they cost against independent samples, on a scripted model that suits the policy unless the recipe has its
    own. A tree that grows by the room it is given gets all that its prompt brings to the pot, at once. Tokens of rollouts
    that the policy stops count, and the saving is against the leaves that are left: it may be below 0.

    Control: the groups of at most 12 steps, each with rollouts that are drawn one by one, a token a tick, all at once, by a
    chance of success of its row. What of it is not simulated is said at the end.
    """
    from services.gateway.preview.preview import preview
    from services.rollout.simulation.simulate import simulate as run

    with search_path.searched(recipes.folders(recipes.find(recipe))):
        read = recipes.read(recipe, overrides or ())
        trees, control = run(read), preview(read, Path.cwd())
    emit(
        trees | {"control": control}
        if as_json
        else trees | {f"control.{k}": v for k, v in control.items()},
        as_json,
    )
