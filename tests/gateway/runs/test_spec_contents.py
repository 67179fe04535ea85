"""Tree specs carry a recipe's logit bias and its scorers, for training and for evaluations."""

from pathlib import Path

from banyan.wire.weights import weights_of
from services.gateway.runs.evaluation import Evaluation
from services.gateway.runs.opening import Opener
from services.gateway.tasks import dataset
from services.rollout.growth.spec import from_wire


async def _opener(recipe) -> Opener:
    return Opener("tiny-1", recipe, await dataset.load(recipe, Path.cwd()))


async def test_evaluations_have_scorers_of_their_own(recipe_of) -> None:
    vote = [{"name": "majority", "settings": {"take": "last"}}]
    opener = await _opener(recipe_of(filter=vote, eval={"filter": [{"name": "number"}]}))
    measured = list(opener.evaluation(Evaluation("before", "greedy", 0)))
    assert measured
    for tree in measured:
        assert list(tree.scorers) == ["number"] and not tree.group_scorers


async def test_a_training_tree_names_those_that_score_its_whole_group(recipe_of) -> None:
    vote = [{"name": "majority"}, {"name": "regex", "settings": {"pattern": "7"}}]
    opener = await _opener(recipe_of(filter=vote, eval={"filter": [{"name": "number"}]}))
    prompt = opener.examples.prompt(opener.examples.train[0])
    tree = opener._spec(prompt, 0, {"group_id": "g"})
    assert (list(tree.scorers), list(tree.group_scorers)) == (["majority", "regex"], ["majority"])


async def test_weights_go_with_the_scorers_and_equal_ones_leave_a_spec_as_it_was(recipe_of) -> None:
    weighed = [{"name": "number"}, {"name": "length", "settings": {"most": 9}, "weight": -0.5}]
    opener = await _opener(recipe_of(filter=weighed, eval={"filter": [{"name": "number"}]}))
    prompt = opener.examples.prompt(opener.examples.train[0])
    tree = opener._spec(prompt, 0, {"group_id": "g"})
    assert list(tree.scorer_weights) == [1.0, -0.5]
    assert weights_of(tree) == {"number": 1.0, "length": -0.5}
    (measured, *_) = opener.evaluation(Evaluation("before", "greedy", 0))
    assert not measured.scorer_weights
    equal = await _opener(recipe_of(filter=[part | {"weight": 2.0} for part in weighed]))
    before = await _opener(recipe_of(filter=[part | {"weight": 1.0} for part in weighed]))
    shared = {"group_id": "g"}
    assert equal._spec(prompt, 0, shared) == before._spec(prompt, 0, shared)


async def test_a_logit_bias_reaches_the_nodes(recipe_of) -> None:
    recipe = recipe_of(generate={"logit_bias": {9: 0.5, 5: -1.0}}, allow_truncated_sampling=True)
    (tree, *_) = (await _opener(recipe)).evaluation(Evaluation("before", "sampled", 0))
    assert from_wire(tree).sampling.bias == ((5, -1.0), (9, 0.5))
