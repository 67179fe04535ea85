"""Scorers of whole groups in a recipe, and the settings that exclude them."""

from collections.abc import Sequence

from banyan import registry
from banyan.errors import InvalidInput
from banyan.facts import INSIDE
from banyan.plugins import TreePolicy, traits
from banyan.recipe import Filter, Recipe


def scorers(filters: Sequence[Filter]) -> list[str]:
    """Return the names of the scorers that score all leaves of a group together.

    A user's function is not imported: its recipe declares it.
    """
    return [f.name for f in filters if f.group or (":" not in f.name and _together(f.name))]


def _together(name: str) -> bool:
    return hasattr(registry.find("filter", name), "score_group")


def check(recipe: Recipe, policy: TreePolicy) -> None:
    """Raise InvalidInput if a scorer of whole groups could never run, or would measure itself."""
    for scorer in (*recipe.filter, *recipe.eval.filter):
        if scorer.group and ":" not in scorer.name:
            raise InvalidInput(
                f"filter {scorer.name}: group is for your own module:function; leave it out"
            )
    if in_eval := scorers(recipe.eval.filter):
        raise InvalidInput(
            f"eval.filter {in_eval[0]} scores a group by itself; evaluations need scorers that "
            "know the truth"
        )
    group_scorers = scorers(recipe.filter)
    if not group_scorers:
        return
    if not recipe.eval.filter:
        raise InvalidInput(
            f"filter {group_scorers[0]} scores a group by itself, which measures nothing; name the "
            "true scorers in eval.filter"
        )
    declared = traits.of_policy(policy)
    if declared.needs_scores or declared.needs_room:
        raise InvalidInput(
            f"generate.policy {recipe.generate.policy} decides by the scores of leaves while its "
            f"tree grows, and filter {group_scorers[0]} scores none before all trees of the group "
            "are grown; use another of the two"
        )
    alone = [f for f in recipe.filter if f.name not in group_scorers and f.weight > 0]
    if INSIDE in declared.gives and not alone:
        raise InvalidInput(
            f"generate.policy {recipe.generate.policy} has places inside of paths scored, which "
            f"filter {group_scorers[0]} does not score, and no other scorer has a weight above 0; "
            "name one more scorer, or give one more weight"
        )
    if recipe.control.redundancy:
        raise InvalidInput(
            "control.redundancy stops trees once enough are closed, and with filter "
            f"{group_scorers[0]} none is closed before all are grown; use one of the two"
        )
