"""The trees that are opened: their ids and seeds, and the curriculum's order of rows."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from banyan.digest import row_digest, tree_id
from banyan.draws import Draws
from banyan.plugins import Budget, PromptStats
from banyan.recipe_loader.load import load
from methods.control.uniform import Uniform, row_of
from services.gateway.runs.create import run_id
from services.gateway.runs.evaluation import Evaluation, evaluations
from services.gateway.runs.opening import Opener, Wave
from services.gateway.runs.staleness_gate import PolicySteps
from services.gateway.tasks import dataset

RECIPES = Path(__file__).parents[3] / "recipes"


async def _opener(recipe) -> Opener:
    return Opener("tiny-1", recipe, await dataset.load(recipe, Path.cwd()))


def _trees(opener: Opener, ordinal: int, min_step: int = 0, **allocated) -> list:
    rows = opener.examples.train
    budget = Budget(range(ordinal, ordinal + 1), 0, 8, 1, 128)
    (uniform,) = Uniform().allocate(PromptStats(rows, []), budget, Draws(opener.recipe.seed))
    return opener.training(ordinal, replace(uniform, **allocated), PolicySteps(min_step))


async def test_a_training_tree_says_everything_that_a_node_needs(recipe_of) -> None:
    recipe = recipe_of(
        generate={"trees": 2, "policy": "iid", "settings": {"width": 3}, "stop": ["."]}
    )
    opener = await _opener(recipe)
    first, second = _trees(opener, 5, 2)
    row = json.loads(first.row_json)
    assert first.tree_id == tree_id("tiny-1", "tiny-1/train/5", row_digest(row), 0)
    assert second.tree_id == tree_id("tiny-1", "tiny-1/train/5", row_digest(row), 1)
    assert (first.group_id, first.group_ordinal, first.group_size, first.min_step) == (
        "tiny-1/train/5",
        5,
        2,
        2,
    )
    assert json.loads(first.generate_json) == {
        "name": "iid", "settings": {"width": 3}, "max_new_tokens": 128, "temperature": 1.0,
        "top_p": 1.0, "top_k": 0, "stop": ["."],
    }  # fmt: skip
    assert list(first.scorers) == ["number"]
    assert json.loads(first.messages_json)[-1]["role"] == "user"
    assert first.seed != second.seed and max(first.seed, second.seed) < 2**63
    assert not first.wave


async def test_the_same_ordinal_is_the_same_trees_in_every_process(recipe_of) -> None:
    first, second = await _opener(recipe_of()), await _opener(recipe_of())
    assert [_trees(first, o) for o in range(20)] == [_trees(second, o) for o in range(20)]
    other = await _opener(recipe_of(seed=1))
    assert [_trees(first, o)[0].row_digest for o in range(20)] != [
        _trees(other, o)[0].row_digest for o in range(20)
    ]


async def test_an_allocation_goes_before_the_recipe(recipe_of) -> None:
    opener = await _opener(
        recipe_of(task={"system": "Be brief."}, generate={"settings": {"width": 8}})
    )
    example = ({"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"})
    plain = _trees(opener, 0)[0]
    trees = _trees(opener, 0, trees=2, settings={"width": 4}, max_new_tokens=9, messages=example)
    assert [t.group_size for t in trees] == [2, 2] and trees[0].tree_id == plain.tree_id
    grown = json.loads(trees[0].generate_json)
    assert grown["settings"] == {"width": 4} and grown["max_new_tokens"] == 9
    system, *asked = json.loads(plain.messages_json)
    assert json.loads(trees[0].messages_json) == [system, *example, *asked]


def test_deterministic_ids_do_not_change_with_fields_that_say_nothing() -> None:
    as_it_once_was = [
        "name=quickstart",
        "description=SmolLM2-135M learns to answer a + b and a * b with the number alone",
        "deterministic=true",
        "budget.steps=28",
        "optimise.decay_steps=0",
        "optimise.learning_rate=2.0e-5",
    ]
    recipe = load(RECIPES / "arithmetic.yaml", as_it_once_was)
    assert run_id(recipe) == "quickstart-f3bba267", (
        "a recipe's new field goes into its part's LATER"
    )
    assert (
        run_id(load(RECIPES / "arithmetic.yaml", [*as_it_once_was, "seed=1"]))
        != "quickstart-f3bba267"
    )


async def test_no_training_tree_is_of_a_held_out_row(recipe_of) -> None:
    opener = await _opener(recipe_of())
    trained = {_trees(opener, o)[0].row_digest for o in range(300)}
    assert len(trained) == len(opener.examples.train)
    assert not trained & set(opener.examples.held_out_digests())


async def test_evaluations_are_greedy_and_sampled_on_the_first_held_out_rows(recipe_of) -> None:
    recipe = recipe_of(eval={"samples": 4, "max_rows": 5})
    opener = await _opener(recipe)
    greedy, sampled = (list(opener.evaluation(e)) for e in evaluations(recipe, "step-2", 2))
    digests = sorted(opener.examples.held_out_digests())[:5]
    assert [t.row_digest for t in greedy] == digests == [t.row_digest for t in sampled]
    assert json.loads(greedy[0].generate_json)["temperature"] == 0
    assert json.loads(greedy[0].generate_json)["settings"] == {"width": 1}
    assert json.loads(sampled[0].generate_json)["temperature"] == 1
    assert json.loads(sampled[0].generate_json)["settings"] == {"width": 4}
    assert {(t.label, t.min_step, t.max_step, t.group_size) for t in greedy} == {
        ("step-2-greedy", 2, 2, 1)
    }
    assert not {t.tree_id for t in greedy} & {t.tree_id for t in sampled}


async def test_deterministic_evaluations_are_waves(recipe_of) -> None:
    opener = await _opener(recipe_of(deterministic=True))
    trees = list(opener.evaluation(Evaluation("before", "greedy", 0)))
    assert {(t.wave, t.wave_size) for t in trees} == {("tiny-1/before-greedy", 3)}


def test_a_wave_can_be_read_from_its_name() -> None:
    wave = Wave("a-b.c-1", 7, 56, 8)
    assert Wave.parse(wave.name) == wave
    assert wave.ordinals == range(56, 64)


@pytest.mark.parametrize("rows", [1, 2, 7, 100])
def test_each_epoch_is_another_permutation_of_all_rows(rows: int) -> None:
    epochs = [[row_of(rows, 3, e * rows + i) for i in range(rows)] for e in range(3)]
    assert all(sorted(epoch) == list(range(rows)) for epoch in epochs)
    assert rows < 7 or epochs[0] != epochs[1] != epochs[2]
