"""The recipe of a call from Python: a named one, with rows, a reward and keys on top."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from banyan.cli import recipes
from banyan.cli.train import search_path
from banyan.cli.train.file_locations import located
from banyan.cli.train.from_python.reward import Reward, scorer_of
from banyan.cli.train.from_python.rows import Rows, path_of
from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.recipe_loader import load, yaml_text

MODEL = "SmolLM2-135M-Instruct"
FOLDER = "python"
"""Folder in the state folder for rows and code that were passed from Python."""
_NAME = "python"
_SETTINGS = {
    "policy": "settings",
    "advantage": "advantage_settings",
    "loss": "loss_settings",
    "curriculum": "curriculum_settings",
}


@dataclass(frozen=True, slots=True)
class Composed:
    """A recipe and the folders of its code."""

    recipe: Recipe
    folders: tuple[Path, ...]


def compose(
    recipe: str | Path | Recipe | Mapping[str, Any] | None,
    dataset: Rows | None,
    reward: Reward | None,
    keys: Mapping[str, Any],
    state: Path,
) -> Composed:
    """Return the recipe of a call.

    recipe: name or file of a recipe, a recipe, or plain data; None for defaults
    dataset: rows, which replace the recipe's task
    reward: function or scorer, which replaces the recipe's `filter`
    keys: keys of the recipe on top; a mapping changes only what it names

    Raises InvalidInput for anything that makes no recipe.
    """
    file, data = _data(recipe)
    folders = [Path.cwd(), file.resolve().parent]
    data = merged(data, _changes(keys))
    own = state / FOLDER
    if dataset is not None:
        kept = {key: data.get("task", {}).get(key) for key in ("prompt", "holdout", "system")}
        named = {key: value for key, value in kept.items() if value is not None}
        task: Any = keys.get("task", {})
        data["task"] = {**named, **task, "name": "file", "path": path_of(dataset, own / "rows")}
    if reward is not None:
        if "filter" in keys:
            raise InvalidInput("reward is the recipe's filter: pass one of `reward` and `filter`")
        scorer = scorer_of(reward, own / "code")
        folders += [folder for folder in scorer.folders if folder not in folders]
        data["filter"] = [scorer.entry]
        data.get("task", {}).pop("reward", None)
    if not data.get("task"):
        raise InvalidInput(
            "there are no rows: pass dataset=[{'prompt': …, 'answer': …}, …], or a recipe that"
            " names a task"
        )
    with search_path.searched(folders):
        resolved = load.resolve(data, "recipe" if recipe is None else str(file))
        return Composed(located(resolved, file), tuple(dict.fromkeys(folders)))


def _data(recipe: str | Path | Recipe | Mapping[str, Any] | None) -> tuple[Path, dict[str, Any]]:
    """Return the file that a recipe's paths are relative to, and its plain data."""
    here = Path.cwd() / "recipe"
    if recipe is None:
        return here, {"name": _NAME, "model": MODEL}
    if isinstance(recipe, Recipe):
        return here, recipe.model_dump(mode="json", exclude_unset=True)
    if isinstance(recipe, Mapping):
        return here, {"name": _NAME, "model": MODEL, **copy.deepcopy(dict(recipe))}
    file = recipes.find(str(recipe))
    try:
        data = yaml_text.parsed(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InvalidInput(f"cannot read recipe {file}: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidInput(f"recipe {file} is no YAML text: {error}") from None
    if not isinstance(data, dict):
        raise InvalidInput(f"recipe {file} must be a YAML mapping")
    return file, data


def _changes(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords as a recipe has them: `steps` and `minutes` are the budget's."""
    changes = dict(keys)
    budget = {name: changes.pop(name) for name in ("steps", "minutes") if name in changes}
    if budget:
        changes["budget"] = {**changes.get("budget", {}), **budget}
    return changes


def merged(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain data with changes; a mapping changes only the keys that it names.

    Settings belong to what is named beside them, so another name has none of the old ones.
    """
    result = dict(data)
    for name, settings in _SETTINGS.items():
        if name in changes and changes[name] != data.get(name):
            result.pop(settings, None)
    for key, value in changes.items():
        inner = result.get(key)
        both = isinstance(value, Mapping) and isinstance(inner, Mapping)
        result[key] = merged(inner, value) if both and inner is not None else _plain(value)
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
