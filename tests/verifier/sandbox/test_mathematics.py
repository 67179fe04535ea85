"""math in its confined child: timers work there, so a tower ends and the next score is right."""

from banyan.plugins import Scored
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec

SPEC = ScorerSpec("math", {"seconds": 0.5})


async def test_expressions_are_compared_in_a_child_and_towers_end_there():
    pool = Pool(Limits(deadline_s=20.0), width=1)
    try:
        for completion, value in (("\\boxed{9^{9^{9^{9}}}}", 0.0), ("$\\frac{2}{4}$", 1.0)):
            verdict = await pool.score(SPEC, completion, {"answer": "1/2"})
            assert verdict.outcome == Scored(value, {"read": 1.0})
            assert verdict.version == "0.9.0+1"
    finally:
        await pool.close()
