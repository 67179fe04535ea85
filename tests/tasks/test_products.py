"""The products that are asked with a calculator at hand."""

from pathlib import Path

import pytest

from banyan.digest import row_digest
from banyan.recipe import Task
from methods.environment.calculator import Calculator
from services.gateway.tasks import load, messages, split

TASK = Task(name="products", size=600, holdout=0.34)


def test_rows_are_different_products_with_right_answers() -> None:
    rows = load(TASK, Path())
    assert len(rows) == len({row_digest(row) for row in rows}) == 600
    assert all(row["answer"] == row["a"] * row["b"] for row in rows)
    assert all(100 <= row[name] <= 999 for row in rows for name in "ab")
    assert rows == load(TASK, Path()) != load(TASK.model_copy(update={"seed": 1}), Path())


def test_no_pair_of_factors_is_on_both_sides() -> None:
    sides = split(load(TASK, Path()), TASK)
    pairs = [{frozenset((r["a"], r["b"])) for r in side} for side in (sides.train, sides.held_out)]
    assert not pairs[0] & pairs[1] and 190 <= len(sides.held_out) <= 215


def test_the_examples_show_calls_that_the_calculator_answers_as_they_say() -> None:
    turns = messages(load(TASK, Path())[0], TASK)
    assert [turn["role"] for turn in turns[-2:]] == ["assistant", "user"]
    calls = [at for at, turn in enumerate(turns) if "<calc>" in turn["content"]]
    assert calls
    for at in calls:
        answer = Calculator().step(b"", turns[at]["content"]).text
        assert turns[at + 1]["content"] == turns[at + 2]["content"] == answer


@pytest.mark.parametrize("size", [2, 1000])
def test_as_many_rows_as_asked(size: int) -> None:
    assert len(load(TASK.model_copy(update={"size": size}), Path())) == size
