"""Scores of stored leaves by the verifier's own code, in this process and its confined children."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from banyan.client import Client
from banyan.digest import canonical
from banyan.errors import InvalidInput
from banyan.plugins import Unscorable
from banyan.plugins.filter import EXAMINERS
from banyan.recipe import Filter, Recipe
from banyan.v1 import runstore_service_pb2 as rs

if TYPE_CHECKING:
    from services.verifier.sandbox.worker import ScorerSpec
    from services.verifier.scoring import Scoring

_AT_ONCE = 64  # leaves that are scored, then stored: the work that is lost by an interruption


@dataclass(slots=True)
class Counts:
    """Leaves of one command.

    stored: leaves with a new score
    failed: leaves without one by a fault of the system, which is in no store
    fault: the last of these faults
    """

    stored: int = 0
    failed: int = 0
    fault: str = ""


async def rescored(
    client: Client, run_id: str, recipe: Recipe, part: Filter, state: Path
) -> tuple[rs.Rescorer, Counts]:
    """Score the leaves that lack a score of this scorer, and store it.

    Raises InvalidInput if the scorer cannot be loaded, or cannot be confined on this machine.
    """
    from services.chassis.process import settings as settings_reader
    from services.verifier.assembled import scoring_of
    from services.verifier.jail.chosen import ChosenJail
    from services.verifier.preview.probe import check_confinement
    from services.verifier.sandbox.pool import Pool
    from services.verifier.settings import Settings
    from services.verifier.store import spec_of

    if not recipe.allow_unconfined_scorers:
        check_confinement([part.name])
    settings, spec = settings_reader.read(Settings), spec_of(recipe, part)
    jail = ChosenJail(state, sandbox=settings.sandbox, width=settings.programs)
    pool = Pool(settings.limits, width=settings.children, lanes=1)
    scoring = scoring_of(settings, pool, jail)
    try:
        if part.name in EXAMINERS:
            await jail.choose()
        rescorer = rs.Rescorer(
            run_id=run_id,
            scorer=part.name,
            settings_json=canonical(part.settings).decode(),
            version=await scoring.version(spec),
        )
        counts = Counts()
        pages = client.leaves_to_rescore(rescorer)
        while (leaves := await asyncio.to_thread(next, pages, None)) is not None:
            for first in range(0, len(leaves), _AT_ONCE):
                await _score(
                    client, scoring, spec, rescorer, leaves[first : first + _AT_ONCE], counts
                )
        return rescorer, counts
    finally:
        await scoring.close()


async def _score(
    client: Client,
    scoring: "Scoring",
    spec: "ScorerSpec",
    rescorer: rs.Rescorer,
    leaves: Sequence[rs.LeafToRescore],
    counts: Counts,
) -> None:
    """Score some leaves at once and store their scores."""
    scores = await asyncio.gather(*(_scored(scoring, spec, rescorer, leaf) for leaf in leaves))
    known = [score for score in scores if isinstance(score, rs.RescoredLeaf)]
    if known:
        counts.stored += await asyncio.to_thread(client.put_rescores, rescorer, known)
    for score in scores:
        if isinstance(score, str):
            counts.failed += 1
            counts.fault = score


async def _scored(
    scoring: "Scoring", spec: "ScorerSpec", rescorer: rs.Rescorer, leaf: rs.LeafToRescore
) -> rs.RescoredLeaf | str:
    """Return a leaf's score, or the fault by which it has none.

    Raises InvalidInput if the scorer has changed meanwhile.
    """
    from services.verifier.scoring import to_wire

    began = time.monotonic()
    row = json.loads(leaf.row_json)
    verdict = await scoring.score(
        spec, leaf.completion, row, run_id=rescorer.run_id, turns=leaf.turns
    )
    outcome = verdict.outcome
    if isinstance(outcome, Unscorable) and (outcome.retry or not verdict.version):
        return outcome.reason
    if verdict.version != rescorer.version:
        raise InvalidInput(
            f"scorer {spec.name!r} was {rescorer.version} and is {verdict.version} now; its source"
            " changed while it scored: run the command again"
        )
    return rs.RescoredLeaf(
        tree_id=leaf.tree_id,
        leaf=leaf.leaf,
        score=to_wire(outcome),
        duration_ms=1000 * (time.monotonic() - began),
    )
