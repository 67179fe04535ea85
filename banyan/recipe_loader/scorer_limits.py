"""Time, memory and concurrency of scorers in a recipe, where a scorer has none or they cannot be
kept."""

from banyan.errors import InvalidInput
from banyan.plugins.filter import EXAMINERS, UNCONFINED, UNCONFINED_GROUPS
from banyan.recipe import Filter, Recipe

_LIMITS = ("deadline_s", "memory_mb", "concurrency")


def check(recipe: Recipe) -> None:
    """Raise InvalidInput for a limit that nothing would keep, or that leaves no time to score."""
    for place, scorers in (("filter", recipe.filter), ("eval.filter", recipe.eval.filter)):
        for index, scorer in enumerate(scorers):
            for limit in _LIMITS:
                if getattr(scorer, limit) is not None:
                    _check_known(scorer, limit, f"{place}.{index}.{limit}")
            longest = recipe.control.score_deadline_s
            if scorer.deadline_s is not None and scorer.deadline_s >= longest:
                raise InvalidInput(
                    f"{place}.{index}.deadline_s {scorer.deadline_s:g} must be below"
                    f" control.score_deadline_s, {longest:g}, after which a leaf without a score"
                    " is unscorable; lower it, or raise that"
                )


def _check_known(scorer: Filter, limit: str, key: str) -> None:
    if scorer.name in UNCONFINED or scorer.name in UNCONFINED_GROUPS:
        raise InvalidInput(
            f"{key}: scorer {scorer.name} is pure code of Banyan's own, which runs within the"
            f" verifier and has no {limit}; leave it out"
        )
    if scorer.name in EXAMINERS and limit != "concurrency":
        raise InvalidInput(
            f"{key}: scorer {scorer.name} runs programs, each in a jail with limits of its own;"
            " set seconds and memory_mb in its settings, and leave this out"
        )
