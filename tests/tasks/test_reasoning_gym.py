"""Rows from reasoning-gym's generators."""

import json
from pathlib import Path

import pytest

from banyan.errors import InvalidInput
from banyan.recipe import Task
from services.gateway.tasks import load, messages, split


def rows(dataset: str, **more):
    return load(Task(name="reasoning-gym", dataset=dataset, size=12, **more), Path("."))


def test_rows_are_plain_json_and_the_same_for_the_same_seed():
    created = rows("countdown", seed=3)
    assert (
        created
        == json.loads(json.dumps(created))
        == rows("countdown", seed=3)
        != rows("countdown", seed=4)
    )
    assert set(created[0]) == {"dataset", "config", "question", "answer", "metadata"}


def test_fractions_behind_a_question_are_kept_as_text():
    created = rows("gsm_symbolic")
    assert created == json.loads(json.dumps(created)) and len(created) == 12
    assert created[7]["metadata"]["variables"]["serving_fraction"] == "2"


def test_settings_of_the_generator_are_used_and_kept():
    created = rows("leg_counting", config={"min_animals": 2, "max_animals": 2})
    assert created[0]["config"] == {"min_animals": 2, "max_animals": 2}


def test_messages_and_split_use_the_question():
    task = Task(name="reasoning-gym", dataset="leg_counting", size=12, holdout=0.25)
    created = load(task, Path("."))
    assert messages(created[0], task) == [{"role": "user", "content": created[0]["question"]}]
    assert len(split(created, task).held_out) == 3


@pytest.mark.parametrize(
    ("dataset", "config", "complaint"),
    [
        ("no_such", {}, "no_such.*countdown"),
        ("countdown", {"min_numbers": 9, "max_numbers": 2}, "min_numbers"),
        ("countdown", {"colour": 1}, "colour"),
        ("countdown", {"seed": 1}, "task.seed"),
        ("list_functions", {}, "same seed"),
        ("composite", {}, "mixes"),
    ],
)
def test_what_cannot_be_made_is_refused_with_the_value(dataset, config, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        rows(dataset, config=config)


def test_a_row_that_no_message_could_carry_is_refused(monkeypatch):
    monkeypatch.setattr("services.gateway.tasks.size.MOST_KIB", 0)
    with pytest.raises(InvalidInput, match=r"leg_counting.: row 0 is a row of"):
        rows("leg_counting")
