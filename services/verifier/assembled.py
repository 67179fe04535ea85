"""Scoring, put together as the settings say: for the verifier, and for commands without one."""

from services.verifier.jail.chosen import ChosenJail
from services.verifier.judging.judging import Judging
from services.verifier.sandbox.pool import Pool
from services.verifier.scoring import Scoring
from services.verifier.settings import Settings


def scoring_of(settings: Settings, pool: Pool, jail: ChosenJail) -> Scoring:
    """Return scoring with all that a scorer may need."""
    judging = Judging(
        network=settings.sandbox_network,
        secrets=settings.secret_names,
        width=settings.judge_requests,
    )
    return Scoring(pool, jail, settings.programs, settings.ceilings, judging)
