"""A new run from a recipe: its model, its id, its examples and their split."""

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from banyan.digest import blake, canonical
from banyan.errors import InvalidInput
from banyan.recipe import Part, Recipe
from banyan.recipe_loader import load
from banyan.v1 import runstore_service_pb2 as runs
from services.chassis import models
from services.chassis.model_checks import model_files
from services.gateway.runs.model_facts import NOTHING_KNOWN, ModelFacts
from services.gateway.tasks import file
from services.gateway.tasks.dataset import Examples

_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run that is not stored yet."""

    run: runs.Run
    recipe: Recipe
    examples: Examples


def read_recipe(recipe_json: str) -> Recipe:
    """Return the recipe of a request.

    Raise InvalidInput that names the key, the value and the reason.
    """
    try:
        data = json.loads(recipe_json)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"recipe_json is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise InvalidInput(f"recipe_json must be an object, got {type(data).__name__}")
    return load.resolve(data)


def with_model(recipe: Recipe) -> Recipe:
    """Return the recipe with the absolute path of its model folder.

    A gateway that is started elsewhere finds it then, too. Raise InvalidInput for an incomplete
    folder, as `banyan train` does before it begins. A folder that is missing on this host may exist
    on the nodes, and models on the hub are fetched by the nodes.
    """
    # os.path, because Path raises for texts that cannot name a folder.
    folder = os.path.expanduser(recipe.model)
    if recipe.model == models.SMOLLM2 or not os.path.isdir(folder):
        return recipe
    model_files.check(Path(folder), tokenizer=recipe.resources.engine == "torch")
    return recipe.model_copy(update={"model": os.path.realpath(folder)})


def with_commit(recipe: Recipe) -> Recipe:
    """Return the recipe with the commit of its task's data set.

    The rows of a resumed run are then the same, whatever the hub has by that time. Raise
    InvalidInput if the data set can be had neither from the hub nor from a cache.
    """
    return recipe.model_copy(update={"task": file.fixed(recipe.task)})


def run_id(recipe: Recipe) -> str:
    """Return `<name>-<8 hex>`: random, or in deterministic mode from the recipe's digest.

    A dot in the name becomes an underscore, because ids are parts of NATS subjects
    (docs/protocol.md, Trees, rows and runs).
    """
    digest = blake(b"banyan.run.v1", canonical(_identity(recipe)))
    suffix = digest[:_ID_BYTES].hex() if recipe.deterministic else secrets.token_hex(_ID_BYTES)
    return f"{recipe.name.replace('.', '_')}-{suffix}"


def _identity(part: Part) -> dict[str, Any]:
    """Return the data that identifies a run: all keys but later ones at their defaults."""
    data = part.model_dump(mode="json")
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if name in part.LATER and value == field.default:
            del data[name]
        elif isinstance(value, Part):
            data[name] = _identity(value)
        elif isinstance(value, list) and all(isinstance(item, Part) for item in value):
            data[name] = [_identity(item) for item in value]
    return data


def new_run(
    recipe: Recipe, examples: Examples, folder: str, state: Path, facts: ModelFacts = NOTHING_KNOWN
) -> NewRun:
    """Return the run to store. Without a folder of its own it gets one in the state folder."""
    name = run_id(recipe)
    run = runs.Run(
        run_id=name,
        recipe_json=recipe.model_dump_json(),
        state=runs.RUN_STATE_STARTING,
        split_digest=examples.digest,
        held_out=examples.held_out_digests(),
        folder=folder or str(state.resolve() / "runs" / name),
        vocabulary=facts.vocabulary,
        longest_path=facts.longest_path,
    )
    return NewRun(run, recipe, examples)
