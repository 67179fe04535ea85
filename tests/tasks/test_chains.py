"""The sums of several numbers with their steps, and worked examples before them."""

from pathlib import Path
from typing import Any

import pytest

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import Scored
from banyan.recipe import Task
from services.gateway.tasks import load


def _rows(size: int = 10_000, **settings: Any) -> list[dict[str, Any]]:
    return load(Task(name="chains", size=size, **settings), Path())


@pytest.mark.parametrize("terms", [2, 3, 4])
def test_there_are_as_many_sums_as_terms_allow(terms: int) -> None:
    rows = _rows(config={"terms": terms})
    assert len(rows) == len({row["question"] for row in rows}) == 8**terms
    for row in rows[:100]:
        numbers = [int(n) for n in row["question"].split(" + ")]
        assert len(numbers) == terms and set(numbers) <= set(range(2, 10))
        assert row["answer"] == sum(numbers) and len(row["solution"]) == terms - 1
        assert row["solution"][-1].endswith(f"= {sum(numbers)}")


def test_examples_are_worked_as_turns_and_never_asked() -> None:
    config = {"terms": 3, "examples": 3}
    rows = _rows(config=config)
    assert len(rows) == 8**3 - 3
    turns = rows[0]["question"][:-1]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 3
    scorer = registry.build("filter", "number", {"take": "last"})
    asked = {row["question"][-1]["content"] for row in rows}
    for question, answer in zip(turns[::2], turns[1::2], strict=True):
        total = sum(int(n) for n in question["content"].split(" + "))
        assert scorer.score(answer["content"], {"answer": total}) == Scored(1.0)
        assert len(answer["content"].splitlines()) == 2 and question["content"] not in asked
    assert len(asked) == len(rows)
    for row in rows:
        assert row["question"][:-1] == turns and row["question"][-1]["role"] == "user"
    assert rows == _rows(config=config) != _rows(config=config, seed=1)
    assert len(_rows(20, config=config)) == 20


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"terms": 1}, "task.config.terms must be a whole number in 2..10, got 1"),
        ({"terms": 11}, "2..10, got 11"),
        ({"terms": True}, "2..10, got True"),
        ({"examples": 9}, "task.config.examples must be a whole number in 0..8, got 9"),
        ({"examples": "3"}, "0..8, got '3'"),
        ({"operations": 3}, "has 'operations'; chains takes `terms` and `examples` alone"),
    ],
)
def test_other_settings_are_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        _rows(config=config)
