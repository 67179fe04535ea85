"""A path that calls its tool and then says nothing earns nothing, whatever scores it."""

from typing import Any

import pytest

from banyan import registry
from banyan.environments.observation import ToolOutcome
from banyan.plugins import Observed, Part, Scored
from methods.filter.code import Code

ROW = {"question": "2 + 3", "answer": "5"}
GYM = {**ROW, "dataset": "simple_equations", "metadata": {"variable": "x"}}
ALONE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "number": ({}, ROW),
    "steps": ({}, {**ROW, "solution": ["2 + 3 = 5"]}),
    "regex": ({"pattern": "^(.*)$"}, ROW),
    "reasoning-gym": ({}, GYM),
    "choice": ({}, {"answer": "A", "options": ["", "b"]}),
    "exact": ({}, ROW),
    "format": ({"partial": True}, ROW),
    "length": ({"most": 100, "buffer": 10}, ROW),
    "math": ({}, ROW),
    "json-schema": ({"schema": {"type": "string"}}, ROW),
}
# environment pays for acts, whatever is said; votes pay nothing, as they have no weight
OTHERWISE = {"majority", "code", "tool-calls", "judge", "environment", "vote", "head-vote"}
CALL = Part("tool", "5", "<calc>2 + 3</calc>", Observed("calculator", ToolOutcome.OK))


def test_every_scorer_is_here() -> None:
    assert set(ALONE) | OTHERWISE == set(registry.names("filter"))


@pytest.mark.parametrize("completion", ["", " \n\t"])
@pytest.mark.parametrize("name", sorted(ALONE))
def test_silence_earns_nothing(name: str, completion: str) -> None:
    settings, row = ALONE[name]
    score = registry.build("filter", name, settings).score(completion, row)
    assert isinstance(score, Scored) and score.value == 0.0


def test_a_silent_group_has_no_majority() -> None:
    majority = registry.build("filter", "majority", {"extract": "text"})
    assert [s.value for s in majority.score_group(["", " ", "\n"], ROW)] == [0.0] * 3


def test_no_program_passes_no_test() -> None:
    examination = Code().examine("", {"tests": [{"stdin": "", "stdout": ""}]})
    with pytest.raises(StopIteration) as end:
        next(examination)
    assert end.value.value.value == 0.0


def test_a_call_without_a_word_behind_its_answer_is_no_use_of_a_tool() -> None:
    calls = registry.build("filter", "tool-calls", {})
    assert [calls.score(text, ROW, [CALL]).value for text in ("", " \n", "5")] == [0.0, 0.0, 1.0]


def test_a_judge_is_not_asked_about_nothing() -> None:
    settings = {"base_url": "http://127.0.0.1:1/v1", "model": "m", "rubric": "{completion}"}
    for text in ("", " \n"):
        with pytest.raises(StopIteration) as end:
            next(registry.build("filter", "judge", settings).ask(text, ROW))
        assert end.value.value.value == 0.0
