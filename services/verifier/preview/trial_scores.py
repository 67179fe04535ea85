"""Scores of completions on request of a person: no broker, no store, the verifier's own code."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from banyan import reward
from banyan.plugins import Row, Scored
from banyan.plugins.ask import ASKERS
from banyan.plugins.filter import EARNINGS, EXAMINERS, UNCONFINED, UNCONFINED_GROUPS
from banyan.recipe import Recipe
from banyan.wire.weights import by_name
from services.chassis.process import settings as settings_reader
from services.verifier.assembled import scoring_of
from services.verifier.jail.chosen import ChosenJail
from services.verifier.sandbox.lane import Verdict
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec
from services.verifier.scoring import Scoring
from services.verifier.settings import Settings
from services.verifier.store import specs_of


@dataclass(frozen=True, slots=True)
class TrialScore:
    """The verdict of a scorer on a completion, and the seconds it took.

    counts: it is part of the reward; scorers of evaluations alone are not.
    """

    scorer: str
    verdict: Verdict
    seconds: float
    counts: bool


async def score(
    recipe: Recipe, completions: Sequence[str], row: Row
) -> list[tuple[list[TrialScore], float | None]]:
    """Return for each completion its scores by all scorers of a recipe, and its reward.

    The completions are a group for scorers of groups. The reward is None if a scorer of the recipe
    gave none, as does one that is at its deadline: whether it is too slow or the answer made it so
    is for who reads the reason. Processes are started before, so that their imports are not in the
    seconds.

    Raises InvalidInput if a scorer cannot be loaded, or cannot be called with the row.
    """
    return (await score_rows(recipe, [(row, completions)]))[0]


async def score_rows(
    recipe: Recipe, answered: Sequence[tuple[Row, Sequence[str]]]
) -> list[list[tuple[list[TrialScore], float | None]]]:
    """Return for each row what `score` does for its completions; processes are started once."""
    settings = settings_reader.read(Settings)
    pool = Pool(settings.limits, hurried=True)
    jail = ChosenJail(settings.state, sandbox=settings.sandbox)
    scoring = scoring_of(settings, pool, jail)
    specs = specs_of(recipe.model_dump_json())
    try:
        for spec in specs.values():
            if spec.name in EXAMINERS:
                await jail.choose()
            elif spec.name not in {**UNCONFINED, **UNCONFINED_GROUPS, **ASKERS, **EARNINGS}:
                await pool.warm(spec, answered[0][0])
        return [
            await _of_row(recipe, scoring, specs.values(), completions, row)
            for row, completions in answered
        ]
    finally:
        await scoring.close()


async def _of_row(
    recipe: Recipe,
    scoring: Scoring,
    specs: Collection[ScorerSpec],
    completions: Sequence[str],
    row: Row,
) -> list[tuple[list[TrialScore], float | None]]:
    by_scorer = [
        await _scores(scoring, spec, completions, row, spec.name in recipe.scorers)
        for spec in specs
    ]
    scores = [list(of_completion) for of_completion in zip(*by_scorer, strict=True)]
    weights = by_name(recipe.scorers, recipe.scorer_weights)
    rewards = _rewards(scores, len(recipe.scorers), weights)
    return [(of_completion, rewards[number]) for number, of_completion in enumerate(scores)]


async def _scores(
    scoring: Scoring, spec: ScorerSpec, completions: Sequence[str], row: Row, counts: bool
) -> list[TrialScore]:
    """Return a scorer's score for each completion."""
    scores = []
    if spec.group:
        began = time.monotonic()
        verdicts = await scoring.score_group(spec, completions, row)
        seconds = time.monotonic() - began
        return [TrialScore(spec.name, verdict, seconds, counts) for verdict in verdicts]
    for completion in completions:
        began = time.monotonic()
        verdict = await scoring.score(spec, completion, row)
        scores.append(TrialScore(spec.name, verdict, time.monotonic() - began, counts))
    return scores


def _rewards(
    scores: Sequence[Sequence[TrialScore]], scorers: int, weights: reward.Weights
) -> Mapping[int, float | None]:
    return reward.rewards(
        (
            (number, score.scorer, _value(score))
            for number, of_completion in enumerate(scores)
            for score in of_completion
            if score.counts
        ),
        scorers,
        weights,
    )


def _value(score: TrialScore) -> float | None:
    outcome = score.verdict.outcome
    return outcome.value if isinstance(outcome, Scored) else None
