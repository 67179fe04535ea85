"""Votes over the leaves of a row: alike, and weighted by the head's scores; hand-computed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan.plugins import Scored
from methods.filter.head_vote import HeadVote
from methods.filter.majority import vote as label_of
from methods.filter.vote import Vote, counted

ROW: dict[str, object] = {"question": "3 + 4"}
TEXTS = ["it is 7", "8", "8.0", "no idea"]
ANSWERS = st.lists(st.sampled_from(["7", "8", "9", None]), min_size=1, max_size=12)
HALVES = st.floats(0.0, 1.0, width=16)


def values(scored: list[Scored]) -> list[float]:
    return [one.value for one in scored]


def test_the_answer_of_most_wins_and_silence_does_not_vote() -> None:
    scored = Vote().score_group(TEXTS, ROW)
    assert values(scored) == [0.0, 1.0, 1.0, 0.0]
    assert [one.parts["share"] for one in scored] == pytest.approx([1 / 3, 2 / 3, 2 / 3, 0.0])


def test_one_answer_that_the_head_trusts_outweighs_two() -> None:
    """7: 0.75; 8: 0.25 + 0.375 = 0.625; of 1.375 in all."""
    scored = HeadVote().score_group(TEXTS, ROW, [0.75, 0.25, 0.375, 1.0])
    assert values(scored) == [1.0, 0.0, 0.0, 0.0]
    assert [one.parts["share"] for one in scored] == pytest.approx(
        [0.75 / 1.375, 0.625 / 1.375, 0.625 / 1.375, 0.0]
    )
    assert [one.parts["weight"] for one in scored] == [0.75, 0.25, 0.375, 1.0]


def test_of_equal_sums_the_first_answer_wins() -> None:
    assert counted(["8", "7", "7"], [0.5, 0.25, 0.25]) == [(True, 0.5), (False, 0.5), (False, 0.5)]
    assert counted(["7", "8", "7"], [0.25, 0.5, 0.25]) == [(True, 0.5), (False, 0.5), (True, 0.5)]
    assert counted(["7", "8"], [0.0, 0.0]) == [(True, 0.0), (False, 0.0)]


def test_where_none_has_an_answer_having_none_wins() -> None:
    assert values(Vote().score_group(["well", "7 or 8"], ROW)) == [1.0, 1.0]
    assert Vote().score_group([], ROW) == []


@pytest.mark.parametrize("odd", [None, float("nan"), float("inf"), -0.5, 1.5])
def test_without_a_chance_for_each_path_there_is_no_vote(odd: float | None) -> None:
    scored = HeadVote().score_group(TEXTS, ROW, [0.75, 0.25, 0.5, odd])
    assert scored == [Scored(0.0, {"heard": 0.75})] * 4
    cold = HeadVote().score_group(TEXTS, ROW, [None] * 4)
    assert cold == [Scored(0.0, {"heard": 0.0})] * 4


def test_answers_are_compared_as_the_recipe_says() -> None:
    tagged = ["so <answer>1/2</answer>", "<answer>0.5</answer>", "<answer>x</answer>"]
    assert values(Vote(extract="tag").score_group(tagged, ROW)) == [1.0, 1.0, 0.0]
    assert values(Vote(take="last").score_group(["3 + 4 = 7", "7", "8"], ROW)) == [1.0, 1.0, 0.0]
    for settings in ({"extract": "words"}, {"take": "first"}):
        for scorer in (Vote, HeadVote):
            with pytest.raises(ValueError, match="must be"):
                scorer(**settings)


@given(ANSWERS, st.floats(2**-14, 1.0, width=16))
def test_equal_weights_are_the_majority(answers: list[str | None], weight: float) -> None:
    found = counted(answers, [weight] * len(answers))
    label, _ = label_of(answers)
    assert [won for won, _ in found] == [answer == label for answer in answers]
    assert [won for won, _ in found] == [won for won, _ in counted(answers, [1.0] * len(answers))]


@given(st.lists(st.tuples(st.sampled_from(["7", "8", "9", None]), HALVES), min_size=1))
def test_the_winner_has_the_largest_sum_whatever_the_order(
    leaves: list[tuple[str | None, float]],
) -> None:
    answers, weights = zip(*leaves, strict=True)
    sums = {a: sum(w for b, w in leaves if a == b) for a in answers if a is not None}
    winners = {
        answer for answer, (won, _) in zip(answers, counted(answers, weights), strict=True) if won
    }
    if not sums:
        assert winners == {None}
        return
    (winner,) = winners
    assert sums[winner] == max(sums.values())
    if [*sums.values()].count(sums[winner]) == 1:
        back = counted(answers[::-1], weights[::-1])
        assert {a for a, (won, _) in zip(answers[::-1], back, strict=True) if won} == {winner}
