"""`async def` rewards are run to their end; what nobody ran to its end is a clear error."""

from pathlib import Path

import pytest

from banyan.errors import InvalidInput
from banyan.plugins import Scored, Unscorable
from services.verifier.filter.user_function import UserFunction, UserGroupFunction
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec
from tests.verifier import rewards


async def test_they_end_in_their_child_or_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    pool = Pool(Limits(deadline_s=0.5), width=1)

    async def score(function: str) -> Scored | Unscorable:
        return (await pool.score(ScorerSpec(f"rewards:{function}", {}), "x", {"answer": 3})).outcome

    try:
        assert await score("waits") == Scored(3.0)
        late = await score("waits_for_ever")
        assert isinstance(late, Unscorable) or late.value == 0.0
        spec = ScorerSpec("rewards:waits_for_all", {}, group=True)
        group = await pool.score_group(spec, ["a", "bcd"], {})
        assert [verdict.outcome for verdict in group] == [Scored(1.0), Scored(3.0)]
    finally:
        await pool.close()


def test_what_they_raise_is_theirs() -> None:
    with pytest.raises(ValueError, match="no"):
        UserFunction(rewards.waits_and_raises, "r").score("x", {})
    values = UserGroupFunction(rewards.waits_for_all, "r").score_group(["x"], {})
    assert values == [Scored(1.0)]


def test_values_that_nobody_waited_for_are_errors() -> None:
    with pytest.raises(InvalidInput, match=r"returned a coroutine.* `await` missing"):
        UserFunction(rewards.forgets_to_wait, "rewards:forgets_to_wait").score("x", {})
    with pytest.raises(InvalidInput, match="returned a generator"):
        UserGroupFunction(rewards.forgets_to_return, "r").score_group(["x"], {})


@pytest.mark.parametrize("function", [rewards.yields, rewards.yields_later])
def test_generators_are_refused_before_a_run(function: object) -> None:
    made = UserFunction(function, "rewards:yields")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="rewards:yields is a generator"):
        made.check({})
    with pytest.raises(InvalidInput, match="returned a"):
        made.score("x", {})


def test_async_functions_can_be_called_with_a_row() -> None:
    UserFunction(rewards.waits, "rewards:waits").check({"answer": 1})
    with pytest.raises(InvalidInput, match="cannot take a row"):
        UserFunction(rewards.waits, "rewards:waits").check({})
