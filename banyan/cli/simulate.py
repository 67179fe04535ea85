"""`banyan simulate`: a recipe's tree policy on the scripted engine, and its control, in seconds."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from banyan.cli import recipes
from banyan.cli.options import Json
from banyan.cli.render.console import emit, prose
from banyan.cli.train import search_path
from banyan.payoff import verdict
from banyan.payoff.shape import shape_of
from banyan.payoff.tokens import TreeTokens
from banyan.recipe import Recipe


def simulate(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name or file of a recipe.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, such as generate.policy=treepo")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say in seconds what a recipe's trees save, and whether they can pay.

    One group's trees are grown, and the control's decisions for the groups of some steps reported.

    Trees: their cost against independent samples, on a scripted model that suits the tree policy
    unless the recipe has its own. A tree with a growth budget gets all of its prompt's at once.
    Tokens of rollouts that the tree policy stops count, and the saving is against the remaining
    leaves: it may be below 0.

    Control: the groups of at most 12 steps. Their rollouts grow side by side, a token a tick, and
    succeed by a chance of their row. Parts that are not simulated are listed at the end.

    Verdict, for tree policies whose purpose is to share tokens: what measurements say of answers as
    long as the recipe allows, and reasons why the trees cannot pay for themselves, each with
    settings to change. Notes: facts about forks that are no faults.
    """
    from services.gateway.preview.preview import preview
    from services.rollout.simulation.simulate import simulate as run

    with search_path.searched(recipes.folders(recipes.find(recipe))):
        read = recipes.read(recipe, overrides or ())
        trees, control = run(read), preview(read, Path.cwd())
        judged = _judged(read, trees)
    if as_json:
        emit(trees | judged | {"control": control}, True)
        return
    emit(trees, False)
    if judged["known"]:
        prose(f"verdict: {judged['known']}")
    for reason in judged["verdict"]:
        words = f"verdict.{reason['name']}: {reason['words']}; try {reason['try']}"
        prose(words, style="yellow")
    for note in judged["notes"]:
        prose(f"note: {note}")
    emit({f"control.{k}": v for k, v in control.items()}, False)


def _judged(recipe: Recipe, counts: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict on a recipe's trees, what is known of them and notes about their forks."""
    shape = shape_of(recipe)
    if not shape.named_width:  # the tree that was grown says it
        shape = replace(shape, width=max(1, counts["leaves"] // recipe.generate.trees))
    tokens = TreeTokens(
        leaves=counts["leaves"],
        forks=counts["forks"],
        sampled=counts["sampled_tokens"],
        paths=counts["iid_tokens"],
    )
    reasons = [
        {"name": reason.name, "words": reason.words, "try": reason.advice}
        for reason in verdict.verdicts(shape, tokens)
    ]
    known = verdict.known(shape.max_new_tokens) if shape.judged else ""
    return {"known": known, "verdict": reasons, "notes": verdict.notes(shape, tokens)}
