"""Absolute paths of a recipe's files, so that a run resumed from another folder finds them."""

import os
import shutil
from pathlib import Path
from typing import Any

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins.environment import HOSTED
from banyan.recipe import Environment, Recipe
from banyan.recipe.hub_dataset import hub_form, is_hub_dataset
from banyan.recipe_loader import shipped


def located(recipe: Recipe, file: Path) -> Recipe:
    """Return the recipe with absolute paths.

    Names are relative to the recipe's file, or else to the working folder. Raises InvalidInput for
    a task file that is in neither. A model that is in neither may be one of the hub.
    """
    task, model = _task(recipe, file), _model(recipe.model, file)
    environment = _environment(recipe.environment, file)
    return recipe.model_copy(update={"task": task, "model": model, "environment": environment})


def _environment(part: Environment | None, file: Path) -> Environment | None:
    if part is None:
        return None
    settings = {**part.settings}
    for key in _paths(part.name):
        if key in settings:
            settings[key] = _absolute(str(settings[key]), f"environment.settings.{key}", file)
    if part.name == "tools" and isinstance(settings.get("servers"), list):
        settings["servers"] = [_server(one, file) for one in settings["servers"]]
    python = part.python and _absolute(part.python, "environment.python", file)
    return part.model_copy(update={"settings": settings, "python": python})


def _server(server: Any, file: Path) -> Any:
    """Return a server of tools with absolute paths of its program and of its files.

    A program that is no path is looked for where this command finds programs: the verifier's own
    PATH may be another one. Words of the command that are no files here stay as they are.
    """
    if not isinstance(server, dict):
        return server
    located = {**server}
    if command := _texts(server.get("command")):
        program = _beside(command[0], file) or shutil.which(command[0]) or command[0]
        located["command"] = [program, *(_beside(word, file) or word for word in command[1:])]
    if files := _texts(server.get("files")):
        key = "environment.settings.servers.files"
        located["files"] = [_absolute(name, key, file) for name in files]
    return located


def _texts(value: Any) -> list[str]:
    is_list = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return value if is_list else []


def _beside(name: str, file: Path) -> str:
    """Return the absolute path of a file or folder, links kept; empty if there is none."""
    named = Path(name).expanduser()
    found = next((path for path in (file.parent / named, named) if name and path.exists()), None)
    return os.path.abspath(found) if found else ""


def _paths(name: str) -> tuple[str, ...]:
    """Return the settings of an environment that are paths."""
    if name not in HOSTED:
        return ()
    paths: tuple[str, ...] = registry.find("environment", name).paths
    return paths


def _absolute(name: str, key: str, file: Path) -> str:
    """Return the absolute path of a name, links kept.

    They tell an interpreter of a virtual environment where its packages are.
    """
    found = _beside(name, file)
    if not found:
        raise InvalidInput(f"{file}: {key}: there is no {_absent(name, file)}")
    return found


def _task(recipe: Recipe, file: Path) -> object:
    if not recipe.task.path or is_hub_dataset(recipe.task.path):
        return recipe.task
    path = _found(recipe.task.path, file)
    if path is None:
        raise InvalidInput(
            f"{file}: task.path: there is no file {_absent(recipe.task.path, file)}"
            f"{hub_form(recipe.task.path)}"
        )
    if path.is_dir():
        raise InvalidInput(
            f"{file}: task.path: {recipe.task.path!r} is a folder; name a file of rows in it"
        )
    return recipe.task.model_copy(update={"path": str(path)})


def _absent(name: str, file: Path) -> str:
    """Return a name with where it was looked for, and where it may say how it is made."""
    tried = "" if Path(name).expanduser().is_absolute() else ", neither beside the recipe nor here"
    head = f"; the first lines of {file.name} say how it is made" if _shipped(file) else ""
    return f"{name!r}{tried}{head}"


def _shipped(file: Path) -> bool:
    """Return whether a recipe is one of Banyan's own and begins with a comment."""
    own = file.resolve().parent == shipped.folder()
    return own and file.read_text(encoding="utf-8").startswith("#")


def _model(name: str, file: Path) -> str:
    from services.chassis import models

    path = None if name == models.SMOLLM2 else _found(name, file)
    return name if path is None or not path.is_dir() else str(path)


def _found(name: str, file: Path) -> Path | None:
    named = Path(name).expanduser()
    return next((path.resolve() for path in (file.parent / named, named) if path.exists()), None)
