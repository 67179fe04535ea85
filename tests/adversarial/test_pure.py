"""The corpus on our own pure code, in this process as in the verifier's."""

import time

from banyan import registry
from banyan.plugins.ask import ASKERS
from banyan.plugins.filter import EARNINGS, UNCONFINED, UNCONFINED_GROUPS
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.scoring import Scoring
from tests.adversarial.corpus.every import pure
from tests.adversarial.judged import judged, wrongs

# Each registered scorer has its table; those of programs and patterns are in test_confined.py.
CONFINED = {"regex", "json-schema", "code", "reasoning-gym", "math"}


def test_every_scorer_is_here() -> None:
    ours = {case.subject.scorer for case in pure()}
    assert ours == set(UNCONFINED) | set(UNCONFINED_GROUPS)
    # Scorers of earnings read no completion (tests/methods/filter/test_silence.py).
    assert ours | CONFINED | set(ASKERS) | set(EARNINGS) == set(registry.names("filter"))


async def test_nothing_crashes_and_nothing_is_paid_that_is_not_earned() -> None:
    began = time.process_time()
    scoring = Scoring(Pool(Limits()))
    outcomes = [await judged(scoring, case) for case in pure()]
    await scoring.close()
    assert len(outcomes) >= 1000
    assert wrongs(pure(), outcomes) == []
    assert time.process_time() - began < 5
