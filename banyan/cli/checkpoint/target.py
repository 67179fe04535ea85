"""The model that a command is about: a run's newest checkpoint, or a folder."""

from dataclasses import dataclass
from pathlib import Path

from banyan.cli.store import reading
from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.runtime.run_files import newest_checkpoint

_ADAPTER, _MODEL = "adapter_config.json", "config.json"


@dataclass(frozen=True, slots=True)
class Target:
    """A model on this machine.

    name: run and checkpoint, or the folder
    folder: of the model, as transformers loads it
    recipe: recipe of its run; None of a folder
    """

    name: str
    folder: Path
    recipe: Recipe | None


def found(name: str, state: Path) -> Target:
    """Return the model of a run, by id or by its beginning, or of a folder.

    Raises InvalidInput for an adapter, which is no whole model, and NotFound for a run without a
    checkpoint.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        _check(path, name)
        return Target(name, path.resolve(), None)
    with reading(state) as client:
        run = client.run(name)
    checkpoint = newest_checkpoint(Path(run.folder))
    _check(checkpoint, run.run_id)
    recipe = Recipe.model_validate_json(run.recipe_json, strict=False)
    return Target(f"{checkpoint.name} of {run.run_id}", checkpoint, recipe)


def _check(folder: Path, name: str) -> None:
    if (folder / _ADAPTER).is_file():
        raise InvalidInput(
            f"{folder} is an adapter; write the whole model with `banyan export RUN --merge --to"
            " DIR`, and name DIR"
        )
    if not (folder / _MODEL).is_file():
        raise InvalidInput(f"{name}: {folder} is no model's folder: it has no {_MODEL}")
