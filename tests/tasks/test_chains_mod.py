"""The chains of sums and differences modulo 10, whose answers have six letters an operation."""

from pathlib import Path
from typing import Any

import pytest

from banyan import registry
from banyan.digest import row_digest
from banyan.errors import InvalidInput
from banyan.plugins import Scored
from banyan.recipe import Task
from services.gateway.tasks import load, split
from services.gateway.tasks.chains_mod import FACTS, result


def _rows(size: int = 500, **settings: Any) -> list[dict[str, Any]]:
    return load(Task(name="chains-mod", size=size, **settings), Path())


@pytest.mark.parametrize("operations", [1, 8, 16, 32, 52])
def test_each_step_of_a_chain_follows_from_the_one_before(operations: int) -> None:
    for row in _rows(100, config={"operations": operations}):
        now, *asked = row["question"].split()
        assert len(asked) == len(row["solution"]) == operations
        assert len(row["answer"]) == 6 * operations
        for what, step in zip(asked, row["solution"], strict=True):
            label, sign, operand = what
            worth = (int(now) + int(operand) * (1 if sign == "+" else -1)) % 10
            assert step == f"{now}{label}{sign}{operand}={worth}"
            now = str(worth)
        assert row["answer"] == "".join(row["solution"]) and row["last"] == now


def test_rows_are_different_and_the_same_for_the_same_seed() -> None:
    rows = _rows()
    assert len({row_digest(row) for row in rows}) == 500
    assert rows == _rows() != _rows(seed=1)
    assert len(_rows(200, config={"operations": 1})) == 200  # all that there are
    sides = split(rows, Task(name="chains-mod", size=500, holdout=0.2))
    assert (len(sides.train), len(sides.held_out)) == (400, 100)


def test_long_chains_ask_for_every_fact() -> None:
    asked = {(int(step[0]), step[2], int(step[3])) for row in _rows() for step in row["solution"]}
    assert asked == set(FACTS) and len(FACTS) == 200
    assert (result(7, "+", 4), result(1, "-", 9)) == (1, 2)


def test_the_whole_chain_counts_or_the_last_digit_alone() -> None:
    (row, *_) = _rows(2, config={"operations": 2})
    wrong = row["answer"].replace("=", "=9", 1)
    for name, settings, worth in (
        ("exact", {}, (1.0, 0.0)),
        ("number", {"answer": "last", "take": "last"}, (1.0, 1.0)),
    ):
        scorer = registry.build("filter", name, settings)
        values = [scorer.score(text, row) for text in (row["answer"], wrong)]
        assert values == [Scored(worth[0]), Scored(worth[1])]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"config": {"operations": 0}}, r"operations must be a whole number in 1\.\.52, got 0"),
        ({"config": {"operations": 53}}, "got 53"),
        ({"config": {"operations": True}}, "got True"),
        ({"config": {"steps": 8}}, "'steps'; chains-mod takes `operations` alone"),
        ({"size": 201, "config": {"operations": 1}}, "there are 200 chains of 1 operations"),
    ],
)
def test_what_cannot_be_made_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        load(Task(name="chains-mod", **settings), Path())
