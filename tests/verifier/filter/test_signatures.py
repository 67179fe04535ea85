"""How a user's function wants to be called, and what is said to one that cannot be."""

from typing import Any

import pytest

from banyan.errors import InvalidInput
from banyan.plugins import Scored, Unscorable
from services.verifier.filter.user_function import UserFunction, UserGroupFunction

ROW = {"prompt": "1 + 1", "answer": 2}
TALK = {"prompt": [{"role": "user", "content": "1 + 1"}], "answer": 2}


def trl(prompts, completions, **kwargs):
    return [float(str(a) in c) for c, a in zip(completions, kwargs["answer"], strict=True)]


def trl_of_a_column(prompts, completions, answer, **kwargs):
    assert len(prompts) == len(completions) == len(answer)
    return [float(prompt == "1 + 1") for prompt in prompts]


def trl_of_messages(completions, prompts, **kwargs):
    return [float(c[0]["content"] == "2" and c[0]["role"] == "assistant") for c in completions]


def trl_of_tokens(prompts, completions, completion_ids, **kwargs):
    return [0.0 for _ in completions]


def trl_without_prompts(completions, **kwargs):
    return [0.0 for _ in completions]


def banyans(completions, answer, **row):
    return [float(c == str(answer)) for c in completions]


@pytest.mark.parametrize("function", [trl, trl_of_a_column])
def test_a_function_of_trl_gets_lists_of_one_length(function: Any) -> None:
    scorer = UserGroupFunction(function, "m:f")
    scorer.check(ROW)
    values = scorer.score_group(["2", "2 or 3"], ROW)
    assert values == [Scored(1.0), Scored(1.0)]


def test_completions_of_a_conversation_are_messages_as_in_trl() -> None:
    scorer = UserGroupFunction(trl_of_messages, "m:f")
    scorer.check(TALK)
    assert scorer.score_group(["2", "3"], TALK) == [Scored(1.0), Scored(0.0)]


def test_a_group_function_of_ours_gets_the_fields_as_they_are() -> None:
    scorer = UserGroupFunction(banyans, "m:f")
    scorer.check(ROW)
    assert scorer.score_group(["2", "3"], ROW) == [Scored(1.0), Scored(0.0)]


def test_none_for_a_completion_is_no_score() -> None:
    scorer = UserGroupFunction(lambda prompts, completions, **kwargs: [None, 1.0], "m:f")
    first, second = scorer.score_group(["2", "3"], ROW)
    assert isinstance(first, Unscorable) and second == Scored(1.0)


@pytest.mark.parametrize("function", [trl, trl_of_tokens, trl_without_prompts])
def test_a_function_of_groups_that_would_get_one_completion_is_told_so(function: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        UserFunction(function, "m:f").check(ROW)
    for word in ("m:f(", "`group: true`", "`prompts`", "eval.filter", "def reward(completion: str"):
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("function", "row", "words"),
    [
        (
            trl_of_tokens,
            ROW,
            ["wants prompts, completions, completion_ids, **kwargs", "prompt, an"],
        ),
        (trl, {"text": "1 + 1"}, ["no field prompt or question", "only text"]),
        (lambda prompts, completions: [], ROW, ["prompts, completions", "unexpected keyword"]),
        (lambda completions, gold: [], ROW, ["wants completions, gold", "can get completions, pr"]),
    ],
)
def test_a_function_of_groups_names_what_it_wants_and_can_get(
    function: Any, row: dict, words: list[str]
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        UserGroupFunction(function, "m:f").check(row)
    for word in words:
        assert word in str(refusal.value)


def test_a_function_of_one_names_what_it_wants_and_can_get() -> None:
    with pytest.raises(InvalidInput, match=r"It wants completion, gold; it can get completion, pr"):
        UserFunction(lambda completion, gold: 0.0, "m:f").check(ROW)
