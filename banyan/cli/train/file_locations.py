"""Files and folders that a recipe names, as absolute paths: a run that is resumed from another folder finds them, too."""

from pathlib import Path

from banyan.errors import InvalidInput
from banyan.recipe import Recipe


def located(recipe: Recipe, file: Path) -> Recipe:
    """Return the recipe with absolute paths. What it names is relative to its own file, or else to the working folder.

    Raises InvalidInput for a task file that is in neither. A model that is in neither may be one of the hub.
    """
    task, model = _task(recipe, file), _model(recipe.model, file)
    return recipe.model_copy(update={"task": task, "model": model})


def _task(recipe: Recipe, file: Path) -> object:
    if not recipe.task.path:
        return recipe.task
    path = _found(recipe.task.path, file)
    if path is None:
        raise InvalidInput(
            f"{file}: task.path: there is no file {recipe.task.path!r}, neither beside the recipe nor here"
        )
    if path.is_dir():
        raise InvalidInput(
            f"{file}: task.path: {recipe.task.path!r} is a folder; name a file of rows in it"
        )
    return recipe.task.model_copy(update={"path": str(path)})


def _model(name: str, file: Path) -> str:
    from services.chassis import models

    path = None if name == models.SMOLLM2 else _found(name, file)
    return name if path is None or not path.is_dir() else str(path)


def _found(name: str, file: Path) -> Path | None:
    named = Path(name).expanduser()
    return next((path.resolve() for path in (file.parent / named, named) if path.exists()), None)
