"""The scorer of tags: whole tags, their order, what stands outside, and the share."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import Scored
from methods.filter.format import Format

GOOD = "<think>why</think><answer>7</answer>"


@pytest.mark.parametrize(
    "completion",
    [
        GOOD,
        " <think>\nwhy\n</think>\n\n<answer>7</answer>\n",
        "<think>a < b > c </b></think><answer><b>7</b></answer>",
        "<think><Think></think><answer></ answer>7</answer>",
        "<think>\u202ewhy</think><answer>\U0001f600</answer>",
    ],
)
def test_the_shape_is_1(completion: str) -> None:
    assert Format().score(completion, {}).value == 1.0


@pytest.mark.parametrize(
    ("completion", "lenient"),
    [
        ("Well: " + GOOD, 1.0),
        (GOOD + " So 7.", 1.0),
        ("<think>why</think> so <answer>7</answer>", 1.0),
        (GOOD + "\0", 1.0),
        (GOOD + "\u200b", 1.0),
        ("", 0.0),
        ("7", 0.0),
        (GOOD + GOOD, 0.0),
        (GOOD + "<answer>", 0.0),
        (GOOD + "</think>", 0.0),
        ("<answer>7</answer><think>why</think>", 0.0),
        ("<think>why<answer>7</answer></think>", 0.0),
        ("<think>why<answer>7</think></answer>", 0.0),
        ("<think>why</think><answer>7", 0.0),
        ("why</think><answer>7</answer>", 0.0),
        ("</think>why<think><answer>7</answer>", 0.0),
        ("<think>why</think>7", 0.0),
        ("<think></think><answer></answer>", 0.0),
        ("<think> \n</think><answer>7</answer>", 0.0),
        ("<think>why</think><answer>\u200b\0\x1b\u202e\ud800</answer>", 0.0),
        ("<THINK>why</THINK><answer>7</answer>", 0.0),
        ("<think >why</think ><answer>7</answer>", 0.0),
        ("<think>" * 100_000, 0.0),
        ("<think><answer>" * 50_000 + "</answer></think>" * 50_000, 0.0),
    ],
)
def test_anything_else_is_0(completion: str, lenient: float) -> None:
    assert Format().score(completion, {}).value == 0.0
    assert Format(strict=False).score(completion, {}).value == lenient


@pytest.mark.parametrize(
    ("completion", "share", "think", "answer"),
    [
        (GOOD, 1.0, 1.0, 1.0),
        ("so " + GOOD, 2 / 3, 1.0, 1.0),
        ("<answer>7</answer><think>why</think>", 2 / 3, 1.0, 1.0),
        ("<think>why</think>7", 1 / 3, 1.0, 0.0),
        (GOOD + GOOD, 0.0, 0.0, 0.0),
        (GOOD + "<think>", 1 / 3, 0.0, 1.0),
        ("", 0.0, 0.0, 0.0),
    ],
)
def test_a_share_counts_whole_tags_and_the_shape(
    completion: str, share: float, think: float, answer: float
) -> None:
    parts = {"tag_think": think, "tag_answer": answer, "shape": float(share == 1.0)}
    assert Format(partial=True).score(completion, {}) == Scored(share, parts)
    assert Format().score(completion, {}) == Scored(float(share == 1.0), parts)


def test_a_prompt_may_open_the_first_tag() -> None:
    scorer = Format(opened=True)
    texts = ("why</think><answer>7</answer>", GOOD, "</think><answer>7</answer>")
    assert [scorer.score(text, {}).value for text in texts] == [1.0, 0.0, 0.0]


def test_names_are_compared_whole() -> None:
    scorer = registry.build("filter", "format", {"tags": ["a", "ab", "a-b"]})
    text = "<a>1</a><ab>2</ab><a-b>3</a-b>"
    assert scorer.score(text, {}).value == 1.0
    assert scorer.score(text.replace("ab", "abc"), {}).value == 0.0


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"tags": []}, r"list of 1 to 32 names, got \[\]"),
        ({"tags": ["a" * n for n in range(1, 34)]}, "list of 1 to 32 names"),
        ({"tags": "think"}, "list of 1 to 32 names, got 'think'"),
        ({"tags": ["<think>"]}, "tags has '<think>'; give a name"),
        ({"tags": ["think\n"]}, "give a name"),
        ({"tags": [".*"]}, "give a name"),
        ({"tags": [7]}, "tags has 7; give a name"),
        ({"tags": ["a", "a"]}, "each tag once"),
        ({"strict": 1}, "strict must be true or false, got 1"),
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        registry.build("filter", "format", bad)


PIECES = st.sampled_from(
    ["<think>", "</think>", "<answer>", "</answer>", "x", " ", "\0", "\ud800", "\u202e", "<", ">"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join) | st.text())
def test_a_share_is_1_for_the_shape_alone(completion: str) -> None:
    whole = Format().score(completion, {}).value
    share = Format(partial=True).score(completion, {}).value
    lenient = Format(strict=False).score(completion, {}).value
    assert whole in (0.0, 1.0) and 0.0 <= share <= 1.0
    assert (share == 1.0) == (whole == 1.0) and lenient >= whole
