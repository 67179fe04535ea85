"""`banyan export`: a run's model, as a folder that transformers or PEFT loads, and its trees."""

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from banyan.cli.export import model_card
from banyan.cli.export import push as hub
from banyan.cli.options import DEFAULT_STATE, Json, State
from banyan.cli.render.console import emit, out
from banyan.cli.runs.runs import RunId
from banyan.cli.store import reading
from banyan.client import Client
from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.runtime.distribution import installed_version
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
    repository: Annotated[
        str,
        typer.Option(
            "--push", metavar="ORG/NAME", help="Upload the model and its card to a hub, too."
        ),
    ] = "",
    public: Annotated[
        bool, typer.Option("--public", help="Of --push: a repository that is made is public.")
    ] = False,
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """Write a run's last checkpoint, as a Hugging Face folder (PEFT's, of an adapter) with a model
    card, and its trees as JSON lines.

    --push uploads model and card, never trees: what was said in the run stays here.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InvalidInput(
            f"{to} exists and is {'not empty' if to.is_dir() else 'not a folder'}; name a new "
            "folder"
        )
    if repository:
        hub.check(repository)
    with reading(state) as client:
        run = client.run(run_id)
        facts = _written(client, run, to, merge)
    url = hub.push(to, repository, private=not public) if repository else ""
    if as_json:
        emit({"run_id": run.run_id, **facts, "url": url or None}, True)
        return
    out.print(
        f"{facts['checkpoint']} of {run.run_id} ({facts['kind']}) and its {facts['trees']} trees"
        f" are in {to}",
        markup=False,
        soft_wrap=True,
    )
    if url:
        out.print(f"uploaded to {url}", markup=False, soft_wrap=True)


def _written(client: Client, run: rs.Run, to: Path, merge: bool) -> dict[str, Any]:
    """Write model, card, trees and run; return what was written."""
    checkpoint = newest_checkpoint(Path(run.folder))
    kind = _write(run, checkpoint, to, merge)
    with (to / "trees.jsonl").open("w", encoding="utf-8") as lines:
        count = sum(bool(lines.write(line + "\n")) for line in client.export(run.run_id))
    (to / model_card.FILE).write_text(_card(client, run, kind), encoding="utf-8")
    (to / "run.json").write_text(
        json.dumps(plain_data.run(run) | {"recipe": json.loads(run.recipe_json)}, indent=1)
    )
    folder = str(to.resolve())
    return {"folder": folder, "checkpoint": checkpoint.name, "trees": count, "kind": kind}


def _card(client: Client, run: rs.Run, kind: str) -> str:
    return model_card.card(
        model_card.Card(
            run=run,
            progress=client.progress(run.run_id),
            kind=kind,
            version=installed_version(),
            lineage=model_card.lineage_digest(client.policies(run.run_id)),
        )
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
