"""The scorer of multiple choice: what is a claim, what is the final answer, and which rows work."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import Scored, Unscorable
from methods.filter.choice import Choice

CITIES = ["Paris", "Rome", "Oslo", "New York"]
ROW = {"options": CITIES, "answer": "B"}


def value(completion: str, row: dict[str, Any] = ROW) -> float:
    outcome = Choice().score(completion, row)
    assert isinstance(outcome, Scored)
    return outcome.value


@pytest.mark.parametrize(
    "completion",
    [
        *(
            "B",
            "b",
            "(B)",
            "B)",
            "B.",
            "[B]",
            "**B**",
            "`B`",
            "__B__",
            '"B"',
            " B \n",
            "(b).",
            "B!",
        ),
        *("The answer is B", "Answer: B.", "**Answer:** B", "**Answer**: B", "answer = B"),
        *("The correct option is (B).", "So the final answer is: **B**", "The best choice is B"),
        *("option B", "Option (B)", "the letter B", "The answer is option B.", "ANSWER: B"),
        *("\\boxed{B}", "$\\boxed{\\text{B}}$", "The answer is $B$."),
        *("Rome", "rome.", "**Rome**", "The answer is Rome.", "Answer:\n\nRome", "(Rome)"),
        *("B) Rome", "(B) Rome", "B. Rome", "B: Rome", "B - Rome", "**B) Rome**", "B) **Rome**"),
        *("Option B: Rome", "B Rome", "(B)Rome", "B \u2013 ROME"),
    ],
)
def test_these_claim_the_option(completion: str) -> None:
    assert value(completion) == 1.0


@pytest.mark.parametrize(
    "completion",
    [
        *("", " ", "A", "(C)", "D", "E", "Paris", "A) Paris", "The answer is C.", "Answer: A"),
        *("B or C", "B, C", "A/B", "A, B, C, D", "ABCD", "BB", "B C", "(A) (B)", "B) Oslo"),
        *("not B", "The answer is not B", "B?", "B is wrong", "B, because it is old", "between B"),
        *("Rome or Oslo", "Rome Paris", "Not Rome", "Answer: Paris, not Rome", "Romes", "Rome?"),
        *(
            "The answer is",
            "Answer:",
            "Answer: B. The answer is",
            "2",
            "1",
            "-B",
            "B2",
            "B.5",
            "\uff22",
        ),
        *("A\nB", "B\nA", "A\n\nB", "A) Paris\nB) Rome", "D\nC\nA\nB", "Paris\nOslo\nRome"),
        *(
            "Answer: A\nAnswer: B",
            "The answer is A. The answer is B.",
            "Answer: B\nC",
            "Answer: B\nA",
        ),
        *("Answer: A, so the answer is A. The answer is B", "<answer>A</answer> B", "B</think>"),
    ],
)
def test_these_do_not(completion: str) -> None:
    assert value(completion) == 0.0


@pytest.mark.parametrize("answer", "ABCD")
@pytest.mark.parametrize(
    "listed",
    [
        "A\nB\nC\nD",
        "A B C D",
        "A) Paris\nB) Rome\nC) Oslo\nD) New York",
        "Answer: A\nAnswer: B\nAnswer: C\nAnswer: D",
        "Answer: A Answer: B Answer: C Answer: D",
        "The answer is A. The answer is B. The answer is C. The answer is D.",
        "Answer:\nA\nB\nC\nD",
        "Paris\n\nRome\n\nOslo\n\nNew York",
        "<answer>A\nB\nC\nD</answer>",
        "<answer>A, B, C, D</answer>",
    ],
)
def test_a_list_of_all_options_earns_nothing(listed: str, answer: str) -> None:
    assert value(listed, {"options": CITIES, "answer": answer}) == 0.0


@pytest.mark.parametrize(
    "completion",
    [
        "A is in France, C is in Norway.\nB",
        "A\nNo: it is older.\nB",
        "At first, the answer is A.\nWait, that is wrong.\nThe answer is B.",
        "Is the answer A? It is not. The answer is B.",
        "A) Paris\nB) Rome\nC) Oslo\nD) New York\nAnswer: B",
        "Answer: B\nIt was built first; A is younger.",
        "Answer: B\nB",
        "<think>The answer is C.</think>B",
        "<think><answer>A</answer></think>\n<answer>B</answer>",
        "<answer>A</answer> no, <answer>\nB) Rome\n</answer> That is it.",
    ],
)
def test_reasoning_does_not_count_and_the_final_answer_does(completion: str) -> None:
    assert value(completion) == 1.0


@pytest.mark.parametrize(
    ("row", "right", "wrong"),
    [
        ({"options": CITIES, "answer": 1}, "B", "A"),
        ({"options": CITIES, "answer": "(B)"}, "B", "C"),
        ({"options": CITIES, "answer": "Rome"}, "B", "D"),
        ({"options": CITIES, "answer": "B. Rome"}, "Rome", "Oslo"),
        ({"options": {"1": "Paris", "2": "Rome"}, "answer": "2"}, "(2)", "1"),
        ({"options": {"x": "Paris", "Y": "Rome"}, "answer": "y"}, "Y", "x"),
        ({"options": ["C", "C++", "B"], "answer": "B"}, "C++", "C"),
        ({"options": ["cat", "a dog"], "answer": "B"}, "A dog", "A cat"),
        ({"options": ["5", "-5"], "answer": "B"}, "B) -5", "B) 5"),
        ({"options": {"1": "5", "2": "1.5"}, "answer": "2"}, "1.5", "1. 5"),
        ({"options": ["f(x)", "x"], "answer": "A"}, "**f(x)**", "x"),
        ({"options": ["Paris", "Rome", "Paris"], "answer": "A"}, "A) Paris", "Paris"),
    ],
)
def test_rows_of_many_forms(row: dict[str, Any], right: str, wrong: str) -> None:
    assert [value(right, row), value(wrong, row)] == [1.0, 0.0]


def test_letters_alone_need_no_options() -> None:
    scorer = registry.build("filter", "choice", {"options": "", "answer": "gold"})
    assert [scorer.score(text, {"gold": "D"}).value for text in ("(D)", "D) x", "C")] == [1, 0, 0]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"options": CITIES},
        {"answer": "B"},
        {"options": [], "answer": "A"},
        {"options": {}, "answer": "A"},
        {"options": "Paris", "answer": "A"},
        {"options": [3, 5], "answer": "A"},
        {"options": ["x"] * 27, "answer": "A"},
        {"options": {"a": "x", "A": "y"}, "answer": "A"},
        {"options": {"A)": "x"}, "answer": "A"},
        {"options": {1: "x"}, "answer": "1"},
        {"options": CITIES, "answer": "E"},
        {"options": CITIES, "answer": "A or B"},
        {"options": CITIES, "answer": 4},
        {"options": CITIES, "answer": -1},
        {"options": CITIES, "answer": True},
        {"options": CITIES, "answer": 1.0},
        {"options": {"A": "x", "B": "y"}, "answer": 1},
        {"options": ["x", "x"], "answer": "x"},
        {"options": CITIES, "answer": 10**5000},
        {"options": CITIES, "answer": "\ud800"},
    ],
)
def test_a_row_that_names_no_option_is_unscorable(row: dict[str, Any]) -> None:
    outcome = Choice().score("A", row)
    assert isinstance(outcome, Unscorable) and outcome.reason.startswith("EXCEPTION: field '")


@pytest.mark.parametrize(
    ("bad", "why"),
    [({"answer": ""}, "answer is empty"), ({"options": 3}, "options must be a name")],
)
def test_bad_settings_are_refused(bad: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        registry.build("filter", "choice", bad)


PIECES = st.sampled_from(
    [
        *("A", "B", "(C)", "d", "Rome", "Paris", "or", "the ", "answer is ", "Answer:"),
        *("\n", " ", ". ", ", ", ":", "{", "**", "<answer>", "</answer>", "</think>"),
        *("\0", "\ud800", "\x1b[0m", "\u202e"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(PIECES, max_size=24).map("".join)))
def test_no_text_is_right_for_two_options(completion: str) -> None:
    """So a text that is always the same earns no more than a guess."""
    values = [value(completion, {"options": CITIES, "answer": at}) for at in range(len(CITIES))]
    assert set(values) <= {0.0, 1.0} and sum(values) <= 1.0


@settings(max_examples=100, deadline=None)
@given(st.text(), st.recursive(st.none() | st.text() | st.integers(), st.lists))
def test_no_row_raises(answer: str, options: Any) -> None:
    for row in ({"options": options, "answer": answer}, {"options": CITIES, "answer": options}):
        assert isinstance(Choice().score("A", row), Scored | Unscorable)
