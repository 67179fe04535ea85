"""tool-calls: what environments recorded decides, and nothing that a completion says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan import registry
from banyan.environments.observation import ToolOutcome
from banyan.errors import InvalidInput
from banyan.plugins import Observed, Part
from methods.filter.tool_calls import ToolCalls

OK, BAD, FAILED = ToolOutcome.OK, ToolOutcome.MALFORMED, ToolOutcome.FAILED


def path(*outcomes: ToolOutcome, call: str = "<calc>1</calc>") -> list[Part]:
    return [Part("tool", "answer", call, Observed("calculator", outcome)) for outcome in outcomes]


def value(given_settings, *outcomes, completion="6", call="<calc>1</calc>"):
    scorer = registry.build("filter", "tool-calls", given_settings)
    return scorer.score(completion, {}, path(*outcomes, call=call)).value


def test_the_share_of_calls_that_succeeded():
    assert value({}, OK) == 1.0
    assert value({}, OK, BAD, FAILED, OK) == 0.5
    assert value({"count": "read"}, OK, BAD, FAILED, OK) == 0.75
    parts = ToolCalls(required=["calculator", "x"]).score("6", {}, path(OK, BAD)).parts
    assert parts == {"calls": 2.0, "ok": 0.5, "read": 0.5, "required": 0.5}


def test_too_few_too_many_or_silence_is_nothing():
    assert value({}) == 0.0
    assert value({"at_least": 2}, OK) == 0.0
    assert value({"at_least": 2, "at_most": 2}, OK, OK) == 1.0
    assert value({"at_most": 1}, OK, OK) == 0.0
    assert value({}, OK, completion=" \n") == 0.0


def test_required_tools_must_have_succeeded():
    assert value({"required": ["calculator"]}, BAD, OK) == 0.5
    assert value({"required": ["calculator"]}, BAD, FAILED, completion="calculator") == 0.0
    assert value({"required": ["calculator"], "count": "read"}, FAILED) == 0.0
    assert value({"required": ["python"]}, OK) == 0.0
    told = 'I use "name": "search" later <call>{"name": "sum", "n": [1]}</call>'
    assert value({"required": ["sum"]}, OK, call=told) == 1.0
    assert value({"required": ["search"]}, OK, call=told) == 0.0


def test_an_argument_called_name_is_no_tool():
    for said, had in (
        ('{"name": "price", "arguments": {"name": "buy"}}', 0.0),
        ('{"name": "buy", "arguments": {"name": "Bob"}}', 1.0),
        ('{"arguments": {}, "name": "b\\u0075y"} "name": "price"', 1.0),
        ('{"name": ["buy"]}', 0.0),
        ('{"name": "buy"', 0.0),
    ):
        assert value({"required": ["buy"]}, OK, call=f"so <tool_call>{said}</tool_call>") == had


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=60))
def test_nothing_that_is_said_is_a_call(text):
    assert ToolCalls().score(text, {}, [Part("policy", text)]).value == 0.0
    assert ToolCalls().score(text, {}).value == 0.0


@pytest.mark.parametrize(
    "wrong",
    [{"at_least": 0}, {"at_most": -1}, {"at_least": 3, "at_most": 2}, {"count": "all"},
     {"required": "calculator"}, {"required": [""]}],
)  # fmt: skip
def test_bad_settings_are_refused(wrong):
    with pytest.raises(InvalidInput, match=list(wrong)[-1]):
        registry.build("filter", "tool-calls", wrong)
