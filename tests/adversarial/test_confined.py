"""The corpus on what a process confines: patterns, foreign scorers, programs, users' functions.

Here are those cases that no store could hold or that take a score's whole time; all others go the
whole way of a score in test_event_path.py, through the same processes.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from banyan.plugins import Scored, Unscorable
from banyan.text.printable import textual
from services.verifier.jail.chosen import ChosenJail
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.scoring import Scoring
from tests.adversarial.corpus.case import Case
from tests.adversarial.corpus.every import confined
from tests.adversarial.judged import judged, wrongs

pytestmark = pytest.mark.slow
AT_ONCE = 4


@pytest.fixture
async def scoring(tmp_path: Path) -> AsyncIterator[Scoring]:
    scoring = Scoring(Pool(Limits(deadline_s=5.0)), ChosenJail(tmp_path))
    yield scoring
    await scoring.close()


async def outcomes_of(scoring: Scoring, cases: list[Case]) -> list[Scored | Unscorable]:
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(case: Case) -> Scored | Unscorable:
        async with turns:
            return await judged(scoring, case)

    return list(await asyncio.gather(*map(one, cases)))


async def test_nothing_crashes_and_nothing_is_paid_that_is_not_earned(scoring: Scoring) -> None:
    cases = [case for case in confined() if not case.exhausts and not textual(case.completion)]
    assert cases
    assert wrongs(cases, await outcomes_of(scoring, cases)) == []


async def test_what_exhausts_its_score_is_wrong(scoring: Scoring) -> None:
    cases = [case for case in confined() if case.exhausts]
    assert cases
    assert wrongs(cases, await outcomes_of(scoring, cases)) == []
