"""Scorers of whole groups in a recipe: which of its scorers they are, and what they cannot go together with."""

from collections.abc import Sequence

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import TreePolicy
from banyan.recipe import Filter, Recipe


def scorers(filters: Sequence[Filter]) -> list[str]:
    """Names of those that score all leaves of a group together. A user's function is not imported: its recipe says so."""
    return [f.name for f in filters if f.group or (":" not in f.name and _together(f.name))]


def _together(name: str) -> bool:
    return hasattr(registry.find("filter", name), "score_group")


def check(recipe: Recipe, policy: TreePolicy) -> None:
    """Raises InvalidInput, with the names, where a scorer of whole groups could never be asked, or would measure itself."""
    for scorer in (*recipe.filter, *recipe.eval.filter):
        if scorer.group and ":" not in scorer.name:
            raise InvalidInput(
                f"filter {scorer.name}: group is for your own module:function; leave it out"
            )
    if measured := scorers(recipe.eval.filter):
        raise InvalidInput(
            f"eval.filter {measured[0]} scores a group by itself; evaluations need scorers that know the truth"
        )
    found = scorers(recipe.filter)
    if not found:
        return
    if not recipe.eval.filter:
        raise InvalidInput(
            f"filter {found[0]} scores a group by itself, which measures nothing; name the true scorers in eval.filter"
        )
    for wish in ("needs_scores", "needs_room"):
        if getattr(policy, wish, False):
            raise InvalidInput(
                f"generate.policy {recipe.generate.policy} decides by the scores of leaves while its tree grows, and filter "
                f"{found[0]} scores none before all trees of the group are grown; use another of the two"
            )
    if recipe.control.redundancy:
        raise InvalidInput(
            f"control.redundancy stops trees once enough are closed, and with filter {found[0]} none is closed before all "
            "are grown; use one of the two"
        )
