"""Recipes whose evaluations count votes: their scorers, how rows grow, their trees, and what is
refused.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.recipe_loader import votes
from banyan.recipe_loader.load import resolve
from banyan.wire.weights import weights_of
from methods.generate.iid import Iid
from services.gateway.runs.evaluation import Evaluation, Measured, barrier, evaluations
from services.gateway.runs.opening import Opener
from services.gateway.tasks import dataset
from services.rollout.growth.spec import from_wire

HEAD = {"optimise": {"head": {}}}
ARROL = {"generate": {"policy": "arrol", "settings": {"width": 8, "detect": 3}}, **HEAD}


@dataclass(frozen=True)
class Curious(Iid):
    """Independent samples that may read entropies."""

    reads_entropy: bool = False

    @property
    def needs_entropy(self) -> bool:
        """Whether it reads entropies of segments."""
        return self.reads_entropy


def recipe(counted: dict[str, Any] | None = None, **parts: Any) -> Recipe:
    """Return a recipe that counts votes."""
    base = {"name": "votes", "model": "tiny", "task": {"name": "arithmetic"}}
    measured = {"votes": counted or {}} | parts.pop("eval", {})
    return resolve({**base, "eval": measured, **parts})


def test_votes_without_held_out_rows_are_refused() -> None:
    task = {"name": "arithmetic", "holdout": 0}
    with pytest.raises(InvalidInput, match=r"task\.holdout 0 holds none out"):
        recipe(task=task)
    base = {"name": "votes", "model": "tiny", "task": task}
    assert resolve(base).task.holdout == 0, "refused for its votes alone"


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


def test_the_recipe_may_say_which_number_counts() -> None:
    (vote,) = votes.scorers(recipe({"take": "last"}))
    assert vote.settings == {"extract": "number", "take": "last"}


def test_the_recipe_may_say_how_answers_compare() -> None:
    user = {"filter": [{"name": "my_reward:reward"}]}
    (vote,) = votes.scorers(recipe({"extract": "tag"}, **user))
    assert vote.settings == {"extract": "tag", "take": "only"}
    with pytest.raises(InvalidInput, match=r"my_reward:reward does not say how; set eval\.votes"):
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
            {"policy": "recipe", "settings": {"width": 1}},
            {},
            "counts 2 to 4096 answers of a row, and eval.votes.policy recipe grows 1",
        ),
        (
            {"policy": "recipe", "settings": {"keep": 2.0}},
            ARROL,
            "eval.votes.settings: generate plugin 'arrol': keep must be",
        ),
        (
            {"policy": "recipe", "settings": {"reads_entropy": True}},
            {
                "generate": {"policy": "tests.gateway.runs.test_votes:Curious"},
                "resources": {"engine": "vllm"},
            },
            "eval.votes.settings have generate.policy .* read entropies, .* vllm does not provide",
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


async def opener(made: Recipe) -> Opener:
    return Opener("votes-1", made, await dataset.load(made, Path.cwd()))


async def test_the_trees_of_a_voted_evaluation_owe_a_vote_that_is_no_reward() -> None:
    made = recipe({"weight": "head", "width": 4}, **ARROL)
    assert [e.label for e in evaluations(made, "before", 0)] == [
        "before-greedy",
        "before-sampled",
        "before-voted",
    ]
    trees = await opener(made)
    (tree, *_) = trees.evaluation(Evaluation("before", "voted", 0))
    assert list(tree.scorers) == ["number", "vote", "head-vote"]
    assert list(tree.group_scorers) == ["vote", "head-vote"]
    assert weights_of(tree) == {"number": 1.0, "vote": 0.0, "head-vote": 0.0}
    grown = json.loads(tree.generate_json)
    assert (grown["name"], grown["settings"], grown["head"]) == ("iid", {"width": 4}, True)
    assert from_wire(tree).head
    (sampled, *_) = trees.evaluation(Evaluation("before", "sampled", 0))
    assert list(sampled.scorers) == ["number"] and not sampled.group_scorers
    assert not from_wire(sampled).head


async def test_weights_of_scorers_stay_beside_a_vote() -> None:
    filters = [{"name": "number"}, {"name": "length", "settings": {"most": 9}, "weight": -0.5}]
    trees = await opener(recipe(filter=filters))
    (tree, *_) = trees.evaluation(Evaluation("before", "voted", 0))
    assert weights_of(tree) == {"number": 1.0, "length": -0.5, "vote": 0.0}


def test_training_waits_for_the_votes_too() -> None:
    made = recipe(eval={"every": 2, "samples": 0})
    over = Measured(groups=3, done=3, scored=3)
    assert barrier(made, {"step-2-greedy": over}, 3) == 2
    assert barrier(made, {"step-2-greedy": over, "step-2-voted": over}, 3) == 4
