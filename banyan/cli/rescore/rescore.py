"""`banyan rescore`: a run's leaves scored again, beside the scores that they have."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from banyan import registry
from banyan.cli.options import DEFAULT_STATE, Json, State
from banyan.cli.render.console import emit, err
from banyan.cli.rescore import scoring
from banyan.cli.runs.runs import RunId
from banyan.cli.store import storing
from banyan.cli.train import search_path
from banyan.client import Client
from banyan.errors import InvalidInput
from banyan.recipe import Filter, Recipe
from banyan.recipe_loader import group_scorers
from banyan.v1 import runstore_service_pb2 as rs


def rescore(
    run_id: RunId,
    scorer: Annotated[
        str, typer.Option("--scorer", help="A registered scorer, or module:function.")
    ],
    settings: Annotated[
        str,
        typer.Option(
            "--settings",
            help="Its settings as JSON; left out, those of the run's scorer of that name, or none.",
        ),
    ] = "",
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """Score the leaves of a run's closed trees again, by another scorer; no reward changes.

    The run may be over. The new scores are kept beside the old ones. Leaves that have a score of
    this scorer, version and settings are left out, so an interrupted command can be repeated.
    """
    from services.verifier.sandbox.confinement import kernel

    # A scorer that runs as the same user must not read this process's memory.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    with storing(state) as client:
        run = client.run(run_id)
        recipe = Recipe.model_validate_json(run.recipe_json, strict=False)
        part = _part(recipe, scorer, settings)
        with search_path.searched([Path(f) for f in search_path.remembered(state, [Path.cwd()])]):
            rescorer, counts = asyncio.run(
                scoring.rescored(client, run.run_id, recipe, part, state.resolve())
            )
        result = _result(client, rescorer)
    if result["unscorable"]:
        err.print(
            f"{result['unscorable']} of {result['rescored']} leaves have no score; the commonest"
            f" reason: {result['reason']}",
            markup=False,
            soft_wrap=True,
        )
    if counts.failed:
        err.print(
            f"{counts.failed} leaves could not be scored by a fault of the system, such as:"
            f" {counts.fault}; repeat the command to try them again",
            markup=False,
            soft_wrap=True,
        )
    emit(result | {"scored_now": counts.stored, "failed_now": counts.failed}, as_json)


def _part(recipe: Recipe, scorer: str, text: str) -> Filter:
    """Return the scorer as a part of a recipe. Raises InvalidInput if it cannot score leaves."""
    known = {part.name: part for part in (*recipe.filter, *recipe.eval.filter)}
    part = known.get(scorer) or Filter(name=scorer)
    if text:
        part = part.model_copy(update={"settings": _settings(text)})
    if group_scorers.scorers([part]):
        raise InvalidInput(
            f"--scorer {scorer} scores the leaves of a whole group together; name one that scores"
            " single completions"
        )
    if ":" not in scorer:
        registry.build("filter", scorer, part.settings)
    return part


def _settings(text: str) -> dict[str, Any]:
    try:
        settings = json.loads(text)
        if isinstance(settings, dict):
            return Filter(name="any", settings=settings).settings
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"--settings {text!r:.200} cannot be used: {error}") from None
    raise InvalidInput(f'--settings {text!r:.200} must be a JSON object, such as {{"most": 200}}')


def _result(client: Client, rescorer: rs.Rescorer) -> dict[str, Any]:
    parts = list(client.compared_rescores(rescorer))
    total = {
        name: sum(getattr(part, name) for part in parts)
        for name in (
            "leaves",
            "rescored",
            "old_scored",
            "old_sum",
            "new_scored",
            "new_sum",
            "changed",
            "compared",
        )
    }
    rescored, reasons = total["rescored"], Counter[str]()
    for part in parts:
        reasons.update(part.reasons)
    return {
        "run_id": rescorer.run_id,
        "scorer": rescorer.scorer,
        "version": rescorer.version,
        "settings": json.loads(rescorer.settings_json),
        "leaves": total["leaves"],
        "rescored": rescored,
        "unscorable": rescored - total["new_scored"],
        "reason": reasons.most_common(1)[0][0] if reasons else None,
        "old_mean": total["old_sum"] / total["old_scored"] if total["old_scored"] else None,
        "new_mean": total["new_sum"] / total["new_scored"] if total["new_scored"] else None,
        "verdict_changed": total["changed"] / total["compared"] if total["compared"] else None,
    }
