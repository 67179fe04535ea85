"""Scorers of whole groups in recipes: recognised, and refused by name where they do not fit."""

from pathlib import Path

import pytest

from banyan.errors import InvalidInput
from banyan.recipe_loader import group_scorers
from banyan.recipe_loader.load import load, parse
from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.wire.segments import own_rewards_from_wire
from tests.learner.data.test_node_rewards import TwoTasks

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


class Inside(TwoTasks):
    """A tree policy that has places inside paths scored, and waits for no score."""

    needs_scores = False


def test_places_inside_of_paths_need_a_scorer_of_single_leaves_that_counts() -> None:
    policy = f"generate: {{policy: '{__name__}:Inside'}}\n" + TRUE
    with pytest.raises(InvalidInput, match="filter majority does not score, and no other scorer"):
        parse(HEAD + "filter: [{name: majority}, {name: number, weight: -0.5}]\n" + policy)
    assert parse(HEAD + "filter: [{name: majority}, {name: number, weight: 0.5}]\n" + policy)


@pytest.mark.parametrize(
    ("weights", "own"),
    [
        ({"number": 2.0, "length": -1.0}, {Leaf(b"a", 2): 0.5}),  # (2 · 1 − 1 · 1) / 2
        ({"number": -1.0, "length": -2.0}, {}),
        ({"number": -1.0}, {}),
        ({"number": 0.0}, {}),
    ],
)
def test_penalties_alone_are_no_reward_of_a_place(
    weights: dict[str, float], own: dict[Leaf, float]
) -> None:
    spec = tree_pb2.TreeSpec(
        tree_id=b"t" * 32,
        scorers=["majority", *weights],
        scorer_weights=[1.0, *weights.values()],
        group_scorers=["majority"],
    )
    tree = tree_pb2.Tree(spec=spec, leaves=[{"segment": b"a", "end": 4}])
    tree.segments.add(id=b"a", tokens=bytes(16))
    place = tree_pb2.LeafRef(segment=b"a", end=2)
    for scorer in weights:
        score = tree_pb2.Score(state=tree_pb2.SCORE_STATE_SCORED, value=1.0)
        tree.scores.add(leaf=place, scorer=scorer, score=score)
    assert own_rewards_from_wire(tree) == own
