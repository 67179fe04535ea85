"""Recipes of calls from Python: rows, rewards and keys on top of a recipe."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from banyan.cli.train.from_python.composed import compose, merged
from banyan.cli.train.from_python.rows import path_of
from banyan.errors import InvalidInput
from banyan.recipe import Recipe

ROWS = [{"prompt": f"say {n}", "answer": n} for n in range(4)]


def composed(tmp_path: Path, recipe: Any = None, **more: Any) -> Recipe:
    dataset, reward = more.pop("dataset", None), more.pop("reward", None)
    return compose(recipe, dataset, reward, more, tmp_path).recipe


def test_rows_and_a_scorer_are_enough(tmp_path: Path) -> None:
    recipe = composed(tmp_path, dataset=ROWS, reward="number", steps=7, minutes=2.0)
    assert recipe.task.name == "file" and Path(recipe.task.path).parent.parent.name == "python"
    assert [scorer.name for scorer in recipe.filter] == ["number"]
    assert (recipe.budget.steps, recipe.budget.minutes) == (7, 2.0)
    assert recipe.name == "python" and recipe.model == "SmolLM2-135M-Instruct"


def test_rows_replace_the_task_of_a_recipe_and_the_rest_stays(tmp_path: Path) -> None:
    shipped = composed(tmp_path, "quickstart")
    recipe = composed(tmp_path, "quickstart", dataset=ROWS, reward="number", seed=3)
    assert recipe.task.name == "file" and recipe.task.holdout == shipped.task.holdout
    assert recipe.generate == shipped.generate and recipe.optimise == shipped.optimise
    assert recipe.seed == 3


def test_a_recipe_may_be_data_or_a_recipe(tmp_path: Path) -> None:
    data = {"task": {"name": "arithmetic"}, "budget": {"steps": 3}}
    first = composed(tmp_path, data)
    assert first.budget.steps == 3 and composed(tmp_path, first, seed=1).seed == 1
    assert "name" not in data


def test_a_change_keeps_what_it_does_not_name() -> None:
    data = {"generate": {"policy": "iid", "settings": {"width": 4}, "trees": 2}}
    changes = {"generate": {"settings": {"width": 8}}}
    assert merged(data, changes)["generate"] == {**data["generate"], "settings": {"width": 8}}
    other = merged(data, {"generate": {"policy": "treepo"}})["generate"]
    assert other == {"policy": "treepo", "trees": 2}  # settings are of what is named beside them
    assert data["generate"]["settings"] == {"width": 4}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "there are no rows"),
        ({"dataset": []}, "holds no rows"),
        ({"dataset": {"prompt": "x"}}, "one mapping"),
        ({"dataset": 3}, "dataset is int"),
        ({"dataset": ["x", 3]}, "row 1 of dataset is int 3"),
        ({"dataset": [{"prompt": "x", "answer": {1}}]}, "row 0 of dataset has no form in JSON"),
        ({"dataset": [{"prompt": "x", "answer": float("nan")}]}, "row 0 of dataset has no form"),
        ({"dataset": ROWS, "reward": "number", "filter": []}, "one of `reward` and `filter`"),
        ({"dataset": ROWS, "reward": "number", "colour": "red"}, "colour"),
        ({"recipe": "no-such", "dataset": ROWS}, "there is no recipe 'no-such'"),
        ({"dataset": ROWS}, "task.reward"),
    ],
)
def test_what_makes_no_recipe_is_named(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=words):
        composed(tmp_path, given.pop("recipe", None), **given)


def test_prompts_frames_and_numpy_are_rows(tmp_path: Path) -> None:
    texts = path_of(["a", "b"], tmp_path)
    assert Path(texts).read_text() == '{"prompt": "a"}\n{"prompt": "b"}\n'
    assert path_of(["a", "b"], tmp_path) == texts
    frame = pandas.DataFrame(ROWS)
    assert path_of(frame, tmp_path) == path_of(ROWS, tmp_path)
    rows = [{**row, "answer": np.int64(row["answer"])} for row in ROWS]
    assert path_of(rows, tmp_path) == path_of(ROWS, tmp_path)
    assert path_of("hf://openai/gsm8k/main", tmp_path) == "hf://openai/gsm8k/main"
