"""Scorers that ask for the path's turns get those of the store; others see nothing of them."""

from pathlib import Path

import pytest

from banyan.environments.observation import ToolOutcome
from banyan.errors import InvalidInput
from banyan.plugins import Scored
from banyan.plugins.transcript import of_turns
from banyan.v1 import tree_pb2
from banyan.v1 import treestore_service_pb2 as ts
from services.verifier.filter.turns import plain
from services.verifier.filter.user_function import UserFunction
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec
from services.verifier.scoring import Scoring
from tests.verifier import rewards


def turn(call: str, answer: str, outcome: int = ToolOutcome.OK, reward: float = 0.0) -> ts.Turn:
    seen = tree_pb2.Observation(
        environment="calculator",
        outcome=tree_pb2.ToolOutcome.ValueType(outcome),
        reward=reward,
        action=b"a" * 32,
    )
    return ts.Turn(receipt=tree_pb2.Receipt(observation=seen, call=call), answer=answer)


TURNS = [turn("<calc>2*3</calc>", "6", reward=0.25), turn("<calc>", "?", ToolOutcome.MALFORMED)]
TEXTS = [
    ("policy", "<calc>2*3</calc>", ""),
    ("tool", "6", "<calc>2*3</calc>"),
    ("policy", "<calc>", ""),
    ("tool", "?", "<calc>"),
    ("policy", "six", ""),
]


async def test_scorers_get_the_turns_that_they_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    scoring = Scoring(Pool(Limits(deadline_s=5.0), width=1))
    try:
        row = {"texts": TEXTS}
        one = await scoring.score(ScorerSpec("rewards:ends", {}), "six", row, turns=TURNS)
        assert one.outcome == Scored(1.0, {"right": 1.0})
        alone = await scoring.score(ScorerSpec("rewards:ends", {}), "six", {"texts": TEXTS[4:]})
        assert alone.outcome == Scored(0.0, {"right": 1.0})
        of_class = await scoring.score(ScorerSpec("rewards:turns", {}), "", {}, turns=TURNS)
        assert (of_class.version, of_class.outcome) == ("7", Scored(0.25))
        spec = ScorerSpec("rewards:ends_of_all", {}, group=True)
        group = await scoring.score_group(spec, ["six", ""], {}, turns=[TURNS, TURNS[:1]])
        assert [verdict.outcome for verdict in group] == [Scored(5.0), Scored(2.0)]
        strange = await scoring.score(ScorerSpec("number", {}), "6", {}, turns=[turn("", "", 99)])
        assert "99 is not a valid ToolOutcome" in strange.outcome.reason
    finally:
        await scoring.close()


def test_a_path_ends_with_what_was_said_last() -> None:
    spoken, silent = of_turns(plain(TURNS), "six"), of_turns(plain(TURNS), "")
    assert [(part.kind, part.text, part.call) for part in spoken] == TEXTS
    assert list(silent) == list(spoken[:-1])
    assert of_turns([], "") == ()


def test_a_row_may_not_hold_what_the_function_asks_for() -> None:
    function = UserFunction(rewards.ends, "rewards:ends")
    function.check({"texts": []})
    with pytest.raises(InvalidInput, match="multiple values for keyword argument 'transcript'"):
        function.check({"transcript": []})
