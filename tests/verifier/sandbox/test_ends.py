"""Verdicts on completions whose attempts end without an answer, and the children that try."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan.plugins import Scored, Unscorable
from banyan.programs.run import Outcome
from services.verifier.sandbox import ends
from services.verifier.sandbox.ends import AT_ONCE, TRIES, End
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.outcomes import sound
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ChildDied, ScorerSpec, Worker

SPEC = ScorerSpec("rewards:scripted", {})
RIGHT: dict[str, Any] = {"value": 1.0, "parts": {}}
CAUSES = [outcome for outcome in Outcome if outcome is not Outcome.DONE]


def end(cause: str, how: str = "") -> dict[str, Any]:
    return {"ended": cause, "how": how}


class Scripted:
    """Children that answer one after the other, and are lost where the script says None."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: Sequence[Any]) -> None:
        self._answers = list(answers)
        self.tried: list[_Child] = []
        self.asked: list[str] = []
        self.open = 0
        monkeypatch.setattr(Worker, "start", self._start)

    async def _start(self, *_: Any) -> "_Child":
        self.open += 1
        return _Child(self)

    def answer(self) -> dict[str, Any]:
        answer = self._answers.pop(0)
        if answer is None:
            raise ChildDied("the child ended with status -9")
        return answer  # type: ignore[no-any-return]


class _Child:
    version, apart, wrong, calls, spent = "1", True, -0.5, 0, False

    def __init__(self, script: Scripted) -> None:
        self._script = script

    async def score(self, request: Any) -> dict[str, Any]:
        self._script.tried.append(self)
        self._script.asked.append(request.get("completion", ""))
        return self._script.answer()

    async def close(self) -> None:
        self._script.open -= 1


MEMORY, WALL, CPU = end("MEMORY"), end("WALL"), end("CPU")
SLOW = "TIMEOUT: no answer in 10 s"
LOST = "INFRASTRUCTURE: the child ended with status -9; tried"


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([CPU], Scored(-0.5, {"cpu": 1.0})),
        ([end("PROCESSES")], Scored(-0.5, {"processes": 1.0})),
        ([MEMORY, RIGHT], Scored(1.0)),
        ([MEMORY, MEMORY], Scored(-0.5, {"memory": 1.0})),
        ([end("SIGNALLED", "signal 11"), end("EXITED")], Scored(-0.5, {"exited": 1.0})),
        ([None, RIGHT], Scored(1.0)),
        ([None, None], Unscorable(f"{LOST} 2 times", retry=True)),
        ([None, MEMORY, None], Unscorable(f"{LOST} 3 times", retry=True)),
        ([MEMORY, None, MEMORY], Scored(-0.5, {"memory": 1.0})),
        ([WALL, CPU], Scored(-0.5, {"cpu": 1.0})),
        (
            [WALL, WALL],
            Unscorable(f"{SLOW}, with processor time left; tried 2 times", retry=True),
        ),
    ],
)
async def test_two_ends_of_a_kind_decide_and_no_child_tries_twice(
    monkeypatch: pytest.MonkeyPatch, answers: list[Any], outcome: Scored | Unscorable
) -> None:
    script, pool = Scripted(monkeypatch, [RIGHT, *answers]), Pool(Limits(), width=1)
    assert (await pool.score(SPEC, "x", {})).outcome == Scored(1.0)
    assert (await pool.score(SPEC, "x", {})).outcome == outcome
    assert len(script.tried) == 1 + len(set(script.tried)) == 1 + len(answers)
    (lane,) = pool._lanes.values()
    assert len(lane._idle) <= 1, "no more children are kept than score at once"
    await pool.close()
    assert script.open == 0


RAISED = {"unscorable": "EXCEPTION: KeyError: ''"}


@pytest.mark.parametrize(
    ("control", "outcome"),
    [
        (RIGHT, Scored(-0.5, {"cpu": 1.0})),
        (RAISED, Scored(-0.5, {"cpu": 1.0})),
        (CPU, Unscorable(f"EXCEPTION: the scorer ends on an empty answer, too: {SLOW}")),
        (None, Unscorable(f"EXCEPTION: the scorer ends on an empty answer, too: {SLOW}")),
    ],
)
async def test_a_scorer_that_never_gave_an_answer_must_give_one_to_an_empty_completion(
    monkeypatch: pytest.MonkeyPatch, control: Any, outcome: Scored | Unscorable
) -> None:
    """Its own limits may be too low for it: no reason to call all answers wrong."""
    script, pool = Scripted(monkeypatch, [CPU, control, RIGHT, CPU]), Pool(Limits())
    assert (await pool.score(SPEC, "x", {})).outcome == outcome
    assert script.asked == ["x", ""]
    assert (await pool.score(SPEC, "y", {})).outcome == Scored(1.0)
    assert (await pool.score(SPEC, "z", {})).outcome == Scored(-0.5, {"cpu": 1.0})
    assert script.asked == ["x", "", "y", "z"], "once it has given one it is trusted"
    await pool.close()


@pytest.mark.parametrize(("answer", "left"), [(CPU, ""), (WALL, ", with processor time left")])
async def test_for_somebody_who_waits_the_first_deadline_decides(
    monkeypatch: pytest.MonkeyPatch, answer: Any, left: str
) -> None:
    script, pool = Scripted(monkeypatch, [answer, MEMORY, MEMORY]), Pool(Limits(), hurried=True)
    assert (await pool.score(SPEC, "x", {})).outcome == Unscorable(SLOW + left)
    assert script.asked == ["x"], "neither another child nor an empty completion tries"
    assert [lane._limits.rounds for lane in pool._lanes.values()] == [1]
    await pool.close()


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([CPU], SLOW),
        ([MEMORY] * 2, "INFRASTRUCTURE: the scoring process ended with MEMORY; tried 2 times"),
        (
            [end("SIGNALLED", "signal 11")] * 2,
            "INFRASTRUCTURE: the scoring process ended with signal 11; tried 2 times",
        ),
    ],
)
async def test_one_of_a_group_costs_no_other_its_reward(
    monkeypatch: pytest.MonkeyPatch, answers: list[Any], reason: str
) -> None:
    """Nobody can tell which of them it was: none has a score, whether there are two or one."""
    for texts in (["a", "b"], ["a"]):
        Scripted(monkeypatch, answers)
        pool = Pool(Limits())
        verdicts = await pool.score_group(SPEC, texts, {})
        assert [verdict.outcome for verdict in verdicts] == [Unscorable(reason)] * len(texts)
        await pool.close()


@given(st.lists(st.sampled_from(CAUSES), min_size=1, max_size=8), st.floats(-9.0, 9.0))
def test_any_ends_lead_to_a_verdict_soon_and_none_is_better_than_a_wrong_answer(
    causes: list[Outcome], wrong: float
) -> None:
    so_far: list[End] = []
    outcome = None
    for cause in causes:
        so_far.append(End(cause, str(cause)))
        if outcome := ends.decided(so_far, wrong):
            break
    own = [cause for cause in causes[: len(so_far)] if cause.is_programs]
    if outcome is None:
        assert len(so_far) == len(causes) < 2 * TRIES and not set(causes) & set(AT_ONCE)
    elif isinstance(outcome, Scored):
        assert outcome == sound(Scored(wrong, {so_far[-1].cause.part: 1.0}))
        assert len(own) == TRIES or own[-1] in AT_ONCE
    else:
        assert len(so_far) - len(own) == TRIES and outcome.retry
