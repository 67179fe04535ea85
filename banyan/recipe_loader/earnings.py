"""Scorers of what paths earn in their environment, and the recipes that exclude them."""

from banyan.errors import InvalidInput
from banyan.facts import INSIDE
from banyan.plugins import TreePolicy, traits
from banyan.plugins.filter import EARNINGS
from banyan.recipe import Recipe


def check(recipe: Recipe, policy: TreePolicy) -> None:
    """Raise InvalidInput if nothing is earned, or if rewards of steps would count twice."""
    names = [name for name in (*recipe.scorers, *recipe.eval_scorers) if name in EARNINGS]
    if not names:
        return
    if recipe.environment is None:
        raise InvalidInput(
            f"filter {names[0]} adds up the rewards of an environment, and the recipe has none; "
            "name one in environment, or take another scorer"
        )
    if INSIDE in traits.of_policy(policy).gives:
        raise InvalidInput(
            f"generate.policy {recipe.generate.policy} has places inside of paths scored, where "
            f"filter {names[0]} would count the rewards of earlier steps again; use another policy "
            "or another scorer"
        )
