"""Scorers of whole groups in recipes: recognised, and refused by name where they do not fit."""

from pathlib import Path

import pytest

from banyan.errors import InvalidInput
from banyan.recipe_loader import group_scorers
from banyan.recipe_loader.load import load, parse

TTRL = Path(__file__).parents[2] / "recipes" / "ttrl.yaml"
HEAD = "name: x\nmodel: m/m\ntask: {name: arithmetic}\n"
VOTE = HEAD + "filter: [{name: majority}]\n"
TRUE = "eval: {filter: [{name: number}]}\n"


def test_training_votes_and_evaluations_know_the_truth() -> None:
    recipe = load(TTRL)
    assert (recipe.scorers, recipe.eval_scorers) == (["majority"], ["number"])
    assert (
        group_scorers.scorers(recipe.filter) == ["majority"]
        and group_scorers.scorers(recipe.eval.filter) == []
    )


def test_evaluations_are_scored_as_training_is_unless_the_recipe_says_so() -> None:
    recipe = parse(HEAD + "filter: [{name: regex, settings: {pattern: a}}]\n")
    assert (
        recipe.eval_scorers == recipe.scorers == ["regex"]
        and group_scorers.scorers(recipe.filter) == []
    )


def test_a_users_function_scores_groups_where_the_recipe_says_so() -> None:
    recipe = parse(HEAD + "filter: [{name: 'mine:rank', group: true}, {name: number}]\n" + TRUE)
    assert group_scorers.scorers(recipe.filter) == ["mine:rank"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            VOTE,
            r"filter majority scores a group by itself, which measures nothing; name the true "
            r"scorers in eval.filter",
        ),
        (
            VOTE + "eval: {filter: [{name: majority}]}\n",
            r"eval.filter majority scores a group by itself",
        ),
        (
            VOTE + TRUE + "generate: {policy: dars}\n",
            r"generate.policy dars decides by the scores .* filter majority",
        ),
        (
            VOTE + TRUE + "control: {redundancy: 1}\n",
            r"control.redundancy stops trees .* filter majority",
        ),
        (
            HEAD + "filter: [{name: number, group: true}]\n",
            r"filter number: group is for your own module:function",
        ),
        (
            HEAD + "filter: [{name: number, settings: {take: last}}]\n" + TRUE,
            r"eval.filter and filter .*'number'.* different",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse(text)
