"""Votes of evaluations: the scorers that count them, and the recipes that cannot have any."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import traits
from banyan.plugins.filter import HEAD_VOTE, VOTE
from banyan.recipe import Filter, Recipe, Votes

IID = "iid"
_WIDTH = 16  # answers of a row where a recipe names no number


def scorers(recipe: Recipe) -> list[Filter]:
    """Return the scorers that count a recipe's votes; they are no part of a reward.

    Scorers of the user's own are not imported, so none of them says how its answers compare.
    """
    votes = recipe.eval.votes
    if votes is None:
        return []
    form, number = _of_scorer(recipe)
    settings = {"extract": votes.extract or form, "take": votes.take or number or "only"}
    names = [VOTE, HEAD_VOTE] if votes.weight == "head" else [VOTE]
    return [Filter(name=name, settings=settings, weight=0.0) for name in names]


def growth(recipe: Recipe, votes: Votes) -> tuple[str, dict[str, Any]]:
    """Return the tree policy of a row's tree, with its settings."""
    if votes.policy == IID:
        return IID, {"width": votes.width or _WIDTH}
    return recipe.generate.policy, {**recipe.generate.settings, **votes.settings}


def every_token_scored(recipe: Recipe, votes: Votes) -> bool:
    """Return whether each token needs the head's score.

    A tree policy that uses the head says itself where its paths are scored: there it learns.
    """
    return votes.weight == "head" and not traits.of_policy(_built(recipe, votes)).needs_head


def check(recipe: Recipe) -> None:
    """Raise InvalidInput if the recipe's votes cannot be counted."""
    for part in recipe.filter:
        if part.name in (VOTE, HEAD_VOTE):
            raise InvalidInput(
                f"filter {part.name} counts the votes of evaluations: set eval.votes instead, or "
                "train on filter majority"
            )
    votes = recipe.eval.votes
    if votes is None:
        return
    if votes.extract is None and not _of_scorer(recipe)[0]:
        raise InvalidInput(
            f"eval.votes compares answers, and scorer {recipe.eval_scorers[0]} does not say how; "
            "set eval.votes.extract to number, tag or text"
        )
    for part in scorers(recipe):
        registry.build("filter", part.name, part.settings)
    _check_growth(recipe, votes)
    _check_weight(recipe, votes)


def _check_growth(recipe: Recipe, votes: Votes) -> None:
    built = _built(recipe, votes)
    declared = traits.of_policy(built)
    said = traits.attribute(built, "width") is not None  # a policy need not say how many it grows
    if said and not 2 <= declared.width <= traits.MOST_LEAVES:
        raise InvalidInput(
            f"eval.votes counts 2 to {traits.MOST_LEAVES} answers of a row, and eval.votes.policy"
            f" {votes.policy} grows {declared.width}; change that in eval.votes.settings"
        )
    if declared.needs_scores or declared.needs_room:
        wanted = "scores of leaves" if declared.needs_scores else "a growth budget"
        raise InvalidInput(
            f"eval.votes.policy recipe grows rows by generate.policy {recipe.generate.policy}, "
            f"which waits for {wanted} that an evaluation does not have; set eval.votes.policy: iid"
        )
    if declared.needs_entropy and recipe.resources.engine == "vllm":
        raise InvalidInput(
            f"eval.votes.settings have generate.policy {recipe.generate.policy} read entropies, "
            "which resources.engine vllm does not provide; leave them out"
        )


def _check_weight(recipe: Recipe, votes: Votes) -> None:
    if votes.weight != "head":
        return
    engine = recipe.resources.engine
    if engine == "vllm":
        raise InvalidInput(
            "eval.votes.weight head needs the score of a learned head, which engine vllm does not "
            "provide; use torch, or set eval.votes.weight: none"
        )
    if engine != "scripted" and recipe.optimise.head is None:
        raise InvalidInput(
            "eval.votes.weight head needs the score of a learned head, and this recipe trains "
            "none; train one with `optimise.head: {}` and a tree policy that teaches it, such as "
            "arrol or ets, or set eval.votes.weight: none"
        )


def _built(recipe: Recipe, votes: Votes) -> Any:
    name, settings = growth(recipe, votes)
    try:
        return registry.tree_policy(name, settings)
    except InvalidInput as error:
        raise InvalidInput(f"eval.votes.settings: {error}", reason=error.reason) from error


def _of_scorer(recipe: Recipe) -> tuple[str, str]:
    """Return the form of answers of the first scorer of evaluations that has one, and the number
    that it takes; empty texts if none has.
    """
    parts = {part.name: part for part in (*recipe.filter, *recipe.eval.filter)}
    for name in recipe.eval_scorers:
        if ":" in name:
            continue
        plugin = registry.find("filter", name)
        if form := traits.of_scorer(plugin).compares:
            settings = parts[name].settings if name in parts else {}
            return form, _take(plugin, settings)
    return "", ""


def _take(plugin: Any, settings: Mapping[str, Any]) -> str:
    """Return a scorer's `take` with these settings; empty if it has none."""
    fields = dataclasses.fields(plugin) if dataclasses.is_dataclass(plugin) else ()
    default = next((each.default for each in fields if each.name == "take"), None)
    if default is None:
        default = traits.attribute(plugin, "take", "")
    return str(settings.get("take", default))
