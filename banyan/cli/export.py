"""`banyan export`: a run's model, as a folder that transformers or PEFT loads, and its trees."""

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from banyan.cli.options import DEFAULT_STATE, Json, State
from banyan.cli.render.console import emit, out
from banyan.cli.runs.runs import RunId
from banyan.cli.store import reading
from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.runtime.run_files import newest_checkpoint
from banyan.v1 import runstore_service_pb2 as rs
from banyan.wire import plain_data
from services.chassis.model_checks import model_files

_ADAPTER = "adapter_config.json"
_OWN = ("optimizer*", "manifest.json")


def export(
    run_id: RunId,
    to: Annotated[Path, typer.Option("--to", help="Folder to write.")],
    merge: Annotated[
        bool,
        typer.Option(
            "--merge", help="Of a run with optimise.lora: the whole model instead of the adapter."
        ),
    ] = False,
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """Write a run's last checkpoint, as a Hugging Face folder (PEFT's, of an adapter), and its
    trees as JSON lines."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InvalidInput(
            f"{to} exists and is {'not empty' if to.is_dir() else 'not a folder'}; name a new "
            "folder"
        )
    with reading(state) as client:
        run = client.run(run_id)
        checkpoint = newest_checkpoint(Path(run.folder))
        kind = _write(run, checkpoint, to, merge)
        with (to / "trees.jsonl").open("w", encoding="utf-8") as lines:
            count = sum(bool(lines.write(line + "\n")) for line in client.export(run.run_id))
        (to / "run.json").write_text(
            json.dumps(plain_data.run(run) | {"recipe": json.loads(run.recipe_json)}, indent=1)
        )
    if as_json:
        facts = {
            "folder": str(to.resolve()),
            "checkpoint": checkpoint.name,
            "trees": count,
            "kind": kind,
        }
        emit({"run_id": run.run_id} | facts, True)
    else:
        out.print(
            f"{checkpoint.name} of {run.run_id} ({kind}) and its {count} trees are in {to}",
            markup=False,
            soft_wrap=True,
        )


def _write(run: rs.Run, checkpoint: Path, to: Path, merge: bool) -> str:
    """Write the model and return its kind.

    Raises InvalidInput, before anything is written, for an adapter of another base.
    """
    adapted = (checkpoint / _ADAPTER).is_file()
    if merge and not adapted:
        raise InvalidInput(
            f"{run.run_id} trains whole weights, so there is nothing to merge; leave --merge out"
        )
    if not merge:
        shutil.copytree(checkpoint, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_OWN))
        if not adapted:
            model_files.say_float32(to)
        return "adapter" if adapted else "model"
    from services.chassis import models
    from services.learner.model import merge_lora

    name = Recipe.model_validate_json(run.recipe_json, strict=False).model
    merge_lora.write(checkpoint, models.resolve(name), name, to)
    return "merged model"
