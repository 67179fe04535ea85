"""The script of a simulation whose recipe names none: one that shows what its tree policy does."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from banyan.errors import InvalidInput
from banyan.plugins import traits
from banyan.recipe import Recipe
from services.rollout.engines.scripted import toy_models

Prompt = tuple[dict[str, str], ...]
SUM: Prompt = ({"role": "user", "content": "7 + 5"},)
RIGHT = "12"
_GO: Prompt = ({"role": "user", "content": "go"},)
_ACCURACY = 0.3
_HEAD = {"": 0.5, "a": 0.8, "b": 0.2}


@dataclass(frozen=True, slots=True)
class Stage:
    """A script with its prompt.

    settings: settings of the scripted engine.
    prompt: messages of the prompt.
    words: description of both.
    marks: settings of the environment, whose marks the script can write.
    """

    settings: dict[str, Any]
    prompt: Prompt
    words: str
    marks: Mapping[str, str] = field(default_factory=dict)


def stage(recipe: Recipe, tree_policy: Any, settings: dict[str, Any] | None = None) -> Stage:
    """Return the script for a recipe's tree policy, or the one that `settings` describe.

    Raises InvalidInput if the tree policy would wait for scores that the settings do not give.
    """
    needs_scores = traits.of_policy(tree_policy).needs_scores
    if settings:
        if needs_scores and "accuracy" not in settings:
            raise InvalidInput(
                f"generate.policy {recipe.generate.policy} waits for scores;"
                " set engine_settings.accuracy"
            )
        prompt = SUM if "accuracy" in settings else _GO
        return Stage(settings, prompt, "resources.engine_settings")
    if needs_scores:
        words = f"answers to {SUM[0]['content']}, {_ACCURACY:g} of them right"
        return Stage({"accuracy": _ACCURACY}, SUM, words)
    if recipe.environment is not None:
        return _one_call()
    toy = traits.attribute(tree_policy, "toy", "")
    if toy == "one_fork":
        return _one_fork(recipe.generate.max_new_tokens)
    if toy == "reconverging":
        return _reconverging(recipe.generate.max_new_tokens)
    words = "a or b, evenly, to the limit of the path"
    if traits.of_policy(tree_policy).needs_head:
        words += f"; the head says {_HEAD['a']:g} of an a and {_HEAD['b']:g} of a b"
    return Stage({"chain": {"": {"a": 0.5, "b": 0.5}}, "scores": _HEAD}, _GO, words)


def _one_call() -> Stage:
    begin, end = "=", "?"
    call = f"{begin}6*7{end}"
    chain: dict[str, dict[str, float]] = {call[:n]: {call[n]: 1.0} for n in range(len(call))}
    chain |= {state: {"a": 0.5, "b": 0.5} for state in (" ", "a", "b")}
    words = f"{call}, which the environment answers, then a or b, evenly, to the limit of the path"
    return Stage({"chain": chain}, _GO, words, {"begin": begin, "end": end})


def _one_fork(max_new_tokens: int) -> Stage:
    at = max(1, max_new_tokens // 2)
    words = (
        f"toy one_fork: token {at + 1} is one of {len(toy_models.WAYS)} that are equally likely,"
        " all others are sure"
    )
    return Stage({"chain": toy_models.one_fork(at, max_new_tokens)}, _GO, words)


def _reconverging(max_new_tokens: int) -> Stage:
    stretch = max(3, max_new_tokens // (toy_models.DEPTH + 1))
    before = max(1, stretch // 4)
    words = (
        "toy reconverging: in turn a choice after which all goes on as before, and one after which"
        " nothing does"
    )
    return Stage({"chain": toy_models.reconverging(before, stretch - before - 1)}, _GO, words)
