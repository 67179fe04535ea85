"""Loading of recipes: YAML with line numbers, `--set key=value` on top, validated, plugins
resolved."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from banyan import loggers, losses, registry
from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.recipe_loader import checks, earnings, group_scorers, scorer_limits, votes, yaml_text
from banyan.recipe_loader.errors import Place, Places, explained


def load(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe in a file.

    Raises InvalidInput that names the file, the line, the value and the reason.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidInput(f"cannot read recipe {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"recipe {path} is not UTF-8 text") from None
    return parse(text, overrides, str(path))


def parse(text: str, overrides: Sequence[str] = (), name: str = "recipe") -> Recipe:
    """Return the recipe in a text."""
    try:
        node, data = yaml_text.composed(text), yaml_text.parsed(text)
    except yaml.YAMLError as error:
        problem = str(error).replace('in "<unicode string>", ', "in ")
        raise InvalidInput(f"{name} is not YAML: {' '.join(problem.split())}") from None
    if not isinstance(data, dict):
        got = "nothing" if data is None else type(data).__name__
        raise InvalidInput(f"{name} must be a YAML mapping, got {got}")
    places: Places = {}
    _note_lines(node, (), name, places)
    for override in overrides:
        _override(data, override, places)
    return resolve(data, name, places)


def resolve(data: dict[str, Any], name: str = "recipe", places: Places | None = None) -> Recipe:
    """Return the recipe of plain data.

    Every named plugin is found and built once, so that bad settings are refused now. Scorers that
    are the user's own functions are not imported here but in a child process alone.
    """
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        raise InvalidInput(explained(error, data, name, places or {}, Recipe)) from None
    policy = registry.tree_policy(recipe.generate.policy, recipe.generate.settings)
    checks.tree_policy(recipe, policy)
    if recipe.environment is not None:
        checks.environment(recipe, policy)
    registry.curriculum(recipe.control.curriculum, recipe.control.curriculum_settings)
    if recipe.replay is not None:
        checks.replay(recipe.replay)
    checks.learned_head(recipe, policy)
    checks.rooms(recipe, policy)
    checks.estimator(recipe, policy)
    for scorer in (*recipe.filter, *recipe.eval.filter):
        if ":" not in scorer.name:
            registry.build("filter", scorer.name, scorer.settings)
    if recipe.task.reward and ":" not in recipe.task.reward:
        with checks.named("task.reward"):
            registry.build("filter", recipe.task.reward, {})
    with checks.named("optimise.loss_settings"):
        losses.check(recipe.optimise.loss, recipe.optimise.loss_settings)
    votes.check(recipe)
    group_scorers.check(recipe, policy)
    scorer_limits.check(recipe)
    earnings.check(recipe, policy)
    checks.adapters(recipe)
    loggers.check(recipe)
    return recipe


def _note_lines(node: Any, at: Place, name: str, places: Places) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            places[(*at, key.value)] = f"{name}, line {key.start_mark.line + 1}"
            _note_lines(value, (*at, key.value), name, places)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            places[(*at, index)] = f"{name}, line {value.start_mark.line + 1}"
            _note_lines(value, (*at, index), name, places)


def _override(data: dict[str, Any], override: str, places: Places) -> None:
    key, separator, value = override.partition("=")
    if not separator or not key.strip():
        raise InvalidInput(f"--set {override!r} must be key=value, such as budget.steps=4")
    *path, last = key.strip().split(".")
    at: Any = data  # a mapping, or a list within
    place: Place = ()
    for part in path:
        step = _step(at, part, override)
        if isinstance(at, dict) and at.get(step) is None:
            at[step] = {}
        at = at[step]
        if not isinstance(at, dict | list):
            raise InvalidInput(f"--set {override!r}: {part!r} is a value, not a part of the recipe")
        place = (*place, step)
    final = _step(at, last, override)
    try:
        at[final] = yaml_text.parsed(value)
    except yaml.YAMLError:
        raise InvalidInput(f"--set {override!r}: {value!r} is not a YAML value") from None
    _note_override((*place, final), override, places)


def _step(at: dict[str, Any] | list[Any], part: str, override: str) -> str | int:
    """Return the key, or the position in a list, as in filter.0.name."""
    if isinstance(at, dict):
        return part
    if part.isdecimal() and int(part) < len(at):
        return int(part)
    raise InvalidInput(
        f"--set {override!r}: {part!r} is no position in a list of {len(at)}; they are counted "
        "from 0"
    )


def _note_override(place: Place, override: str, places: Places) -> None:
    """Attribute all that is at or below the key to the option, not to the line that it replaced."""
    for below in [p for p in places if p[: len(place)] == place]:
        del places[below]
    places[place] = f"--set {override}"
    for n in range(1, len(place)):
        places.setdefault(place[:n], f"--set {override}")  # a part that the file does not name
