"""The arithmetic task's rows and their split."""

from pathlib import Path

from banyan.digest import row_digest
from banyan.recipe import Task
from services.gateway.tasks import load, messages, split, split_key

TASK = Task(name="arithmetic", system="Answer with one number.", holdout=0.3)


def test_there_are_145_rows_with_right_answers():
    rows = load(TASK, Path("."))
    assert len(rows) == 145
    assert all(row["answer"] == eval(row["question"]) for row in rows)
    assert len({row_digest(row) for row in rows}) == 145


def test_no_operand_pair_is_on_both_sides_and_about_30_percent_is_held_out():
    sides = split(load(TASK, Path(".")), TASK)
    pairs = [
        {frozenset((row["a"], row["b"])) for row in side} for side in (sides.train, sides.held_out)
    ]
    assert not pairs[0] & pairs[1]
    assert 0.28 <= len(sides.held_out) / 145 <= 0.32
    assert len(sides.train) + len(sides.held_out) == 145


def test_the_split_is_frozen():
    """Published figures are only comparable while the same rows are held out."""
    digest = split(load(TASK, Path(".")), TASK).digest
    assert digest.hex() == "c9fb90a754035fc6a40e3696f3684c7073c8351dd1a5954bb6e70b59debb7257"


def test_the_split_does_not_depend_on_the_order_of_rows():
    rows = load(TASK, Path("."))
    assert split(rows, TASK).digest == split(rows[::-1], TASK).digest


def test_messages_are_system_then_question():
    row = {"question": "3 + 4", "answer": 7, "a": 3, "b": 4, "op": "+"}
    assert messages(row, TASK) == [
        {"role": "system", "content": "Answer with one number."},
        {"role": "user", "content": "3 + 4"},
    ]
    assert split_key(row, TASK) == split_key({**row, "a": 4, "b": 3, "op": "*"}, TASK)
