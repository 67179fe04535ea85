"""A new run from a recipe: its model, its id, its rows, its split. Decides nothing about what happens to it."""

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
from services.gateway.tasks.dataset import Examples

_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run that is not stored yet."""

    run: runs.Run
    recipe: Recipe
    rows: Examples


def read_recipe(recipe_json: str) -> Recipe:
    """The recipe of a request. Raises InvalidInput that names the key, the value and the reason."""
    try:
        data = json.loads(recipe_json)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"recipe_json is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise InvalidInput(f"recipe_json must be an object, got {type(data).__name__}")
    return load.resolve(data)


def with_model(recipe: Recipe) -> Recipe:
    """Return the recipe with the absolute path of its model folder, which a gateway that starts elsewhere finds, too.

    Raises InvalidInput for a folder that is not whole, as `banyan train` does before it begins. A folder that is not on
    this host may be on the nodes', and what the hub has is theirs to fetch.
    """
    # unlike Path's, these raise nothing for what names no folder
    folder = os.path.expanduser(recipe.model)
    if recipe.model == models.SMOLLM2 or not os.path.isdir(folder):
        return recipe
    model_files.check(Path(folder), tokenizer=recipe.resources.engine == "torch")
    return recipe.model_copy(update={"model": os.path.realpath(folder)})


def run_id(recipe: Recipe) -> str:
    """`<name>-<8 hex>`: random, or in deterministic mode from the recipe, which holds the seed (PROTOCOL 1).

    A dot in the name becomes an underscore, because ids are parts of NATS subjects.
    """
    digest = blake(b"banyan.run.v1", canonical(_identity(recipe)))
    suffix = digest[:_ID_BYTES].hex() if recipe.deterministic else secrets.token_hex(_ID_BYTES)
    return f"{recipe.name.replace('.', '_')}-{suffix}"


def _identity(part: Part) -> dict[str, Any]:
    """What makes two recipes the same run: all they say, but for later fields that say nothing."""
    data = part.model_dump(mode="json")
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if name in part.LATER and value == field.default:
            del data[name]
        elif isinstance(value, Part):
            data[name] = _identity(value)
        elif isinstance(value, list) and all(isinstance(one, Part) for one in value):
            data[name] = [_identity(one) for one in value]
    return data


def new_run(
    recipe: Recipe, rows: Examples, folder: str, state: Path, facts: ModelFacts = NOTHING_KNOWN
) -> NewRun:
    """The run to store; without a folder of its own it gets one in the state folder."""
    name = run_id(recipe)
    run = runs.Run(
        run_id=name,
        recipe_json=recipe.model_dump_json(),
        state=runs.RUN_STATE_STARTING,
        split_digest=rows.digest,
        held_out=rows.held_out_digests(),
        folder=folder or str(state.resolve() / "runs" / name),
        vocabulary=facts.vocabulary,
        longest_path=facts.longest_path,
    )
    return NewRun(run, recipe, rows)
