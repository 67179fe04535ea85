"""What a simulation samples from where its recipe names no script: one on which the tree policy shows what it is for."""

from dataclasses import dataclass
from typing import Any

from banyan.errors import InvalidInput
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
    """Settings of the scripted engine, the prompt, and what both are in words."""

    settings: dict[str, Any]
    prompt: Prompt
    words: str


def stage(recipe: Recipe, policy: Any, settings: dict[str, Any] | None = None) -> Stage:
    """The stage of a recipe's policy, with these settings if there are any. Raises InvalidInput where it would wait."""
    scored = bool(getattr(policy, "needs_scores", False))
    if settings:
        if scored and "accuracy" not in settings:
            raise InvalidInput(
                f"generate.policy {recipe.generate.policy} waits for scores; set engine_settings.accuracy"
            )
        return Stage(settings, SUM if "accuracy" in settings else _GO, "resources.engine_settings")
    if scored:
        return Stage(
            {"accuracy": _ACCURACY},
            SUM,
            f"answers to {SUM[0]['content']}, {_ACCURACY:g} of them right",
        )
    most, toy = recipe.generate.max_new_tokens, getattr(policy, "toy", "")
    if toy == "one_fork":
        at = max(1, most // 2)
        words = f"toy one_fork: token {at + 1} is one of {len(toy_models.WAYS)} that are equally likely, all others are sure"
        return Stage({"chain": toy_models.one_fork(at, most)}, _GO, words)
    if toy == "reconverging":
        stretch = max(3, most // (toy_models.DEPTH + 1))
        before = max(1, stretch // 4)
        words = "toy reconverging: in turn a choice after which all goes on as before, and one after which nothing does"
        return Stage({"chain": toy_models.reconverging(before, stretch - before - 1)}, _GO, words)
    words = "a or b, evenly, to the limit of the path"
    if getattr(policy, "needs_head", False):
        words += f"; the head says {_HEAD['a']:g} of an a and {_HEAD['b']:g} of a b"
    return Stage({"chain": {"": {"a": 0.5, "b": 0.5}}, "scores": _HEAD}, _GO, words)
