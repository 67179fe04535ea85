"""Recipes whose evaluations count votes: their scorers, how rows grow, and what is refused."""

from typing import Any

import pytest

from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.recipe_loader import votes
from banyan.recipe_loader.load import resolve

HEAD = {"optimise": {"head": {}}}
ARROL = {"generate": {"policy": "arrol", "settings": {"width": 8, "detect": 3}}, **HEAD}


def recipe(counted: dict[str, Any] | None = None, **parts: Any) -> Recipe:
    """Return a recipe that counts votes."""
    base = {"name": "votes", "model": "tiny", "task": {"name": "arithmetic"}}
    measured = {"votes": counted or {}} | parts.pop("eval", {})
    return resolve({**base, "eval": measured, **parts})


def test_without_a_word_sixteen_answers_vote_alike_as_the_scorer_compares_them() -> None:
    made = recipe()
    (vote,) = votes.scorers(made)
    assert (vote.name, vote.weight) == ("vote", 0.0)
    assert vote.settings == {"extract": "number", "take": "only"}
    assert made.eval.votes is not None
    assert votes.growth(made, made.eval.votes) == ("iid", {"width": 16})
    assert not votes.every_token_scored(made, made.eval.votes)
    assert votes.scorers(resolve(made.model_dump() | {"eval": {}})) == []


@pytest.mark.parametrize(
    ("filters", "compared"),
    [
        ([{"name": "number", "settings": {"take": "last"}}], ("number", "last")),
        ([{"name": "steps"}], ("number", "last")),
        ([{"name": "exact"}], ("text", "only")),
        ([{"name": "math"}, {"name": "exact"}], ("text", "only")),
    ],
)
def test_answers_compare_as_the_first_scorer_that_says_how(
    filters: list[dict[str, Any]], compared: tuple[str, str]
) -> None:
    for parts in ({"filter": filters}, {"eval": {"filter": filters}}):
        (vote,) = votes.scorers(recipe(**parts))
        assert (vote.settings["extract"], vote.settings["take"]) == compared


def test_the_recipe_may_say_how_answers_compare() -> None:
    user = {"filter": [{"name": "my_reward:reward"}]}
    (vote,) = votes.scorers(recipe({"extract": "tag"}, **user))
    assert vote.settings == {"extract": "tag", "take": "only"}
    with pytest.raises(InvalidInput, match="my_reward:reward does not say how; set eval.votes.ext"):
        recipe(**user)
    with pytest.raises(InvalidInput, match="scorer math does not say how"):
        recipe(filter=[{"name": "math"}])


def test_the_head_weighs_beside_the_vote_of_all_alike() -> None:
    made = recipe({"weight": "head", "width": 4}, **ARROL)
    assert [part.name for part in votes.scorers(made)] == ["vote", "head-vote"]
    assert made.eval.votes is not None
    assert votes.growth(made, made.eval.votes) == ("iid", {"width": 4})
    assert votes.every_token_scored(made, made.eval.votes), "iid asks for no score"


def test_the_recipes_own_policy_may_have_other_settings_and_reads_the_head_itself() -> None:
    own = {"policy": "recipe", "settings": {"keep": 1.0}, "weight": "head"}
    made = recipe(own, **ARROL)
    # A stored recipe has every default filled in.
    made = Recipe.model_validate_json(made.model_dump_json())
    assert made.eval.votes is not None
    grown = votes.growth(made, made.eval.votes)
    assert grown == ("arrol", {"width": 8, "detect": 3, "keep": 1.0})
    assert not votes.every_token_scored(made, made.eval.votes)


@pytest.mark.parametrize(
    ("counted", "parts", "words"),
    [
        ({"weight": "head"}, {}, r"trains none; train one with `optimise.head: \{\}` and"),
        (
            {"weight": "head"},
            {"resources": {"engine": "vllm"}},
            "engine vllm does not provide; use torch, or set eval.votes.weight: none",
        ),
        ({"settings": {"width": 4}}, {}, "eval.votes.settings are for policy: recipe"),
        ({"policy": "recipe", "width": 4}, {}, "eval.votes.width is for policy: iid"),
        (
            {"policy": "recipe", "settings": {"keep": 2.0}},
            ARROL,
            "eval.votes.settings: generate plugin 'arrol': keep must be",
        ),
        ({}, {"filter": [{"name": "vote"}]}, "filter vote counts the votes of evaluations: set"),
        (
            {"policy": "recipe"},
            {"generate": {"policy": "dars"}},
            "which waits for scores of leaves that an evaluation does not have; set eval.votes.pol",
        ),
    ],
)
def test_votes_that_cannot_be_are_refused_with_the_remedy(
    counted: dict[str, Any], parts: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        recipe(counted, **parts)


def test_the_scripted_engine_has_a_head_of_its_own() -> None:
    assert recipe({"weight": "head"}, resources={"engine": "scripted"}).eval.votes is not None
