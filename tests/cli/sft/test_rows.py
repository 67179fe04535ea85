"""Rows of a warm start, and what is said of those that cannot be used."""

import json
from pathlib import Path
from typing import Any

import pytest

from banyan.cli.sft import rows
from banyan.errors import InvalidInput
from banyan.recipe import Recipe, Task

ASSISTANT, USER = {"role": "assistant", "content": "4"}, {"role": "user", "content": "2 + 2?"}
TOOL, SYSTEM = {"role": "tool", "content": "4"}, {"role": "system", "content": "be brief"}


def recipe(system: str = "") -> Recipe:
    return Recipe(name="r", model="m", task=Task(name="arithmetic", system=system))


def read(folder: Path, *lines: Any, system: str = "") -> list[rows.Conversation]:
    file = folder / "rows.jsonl"
    file.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    )
    return rows.read(file, recipe(system))


def test_three_forms_are_one(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {"prompt": "2 + 2?", "completion": "4", "source": "a field of the user's"},
        {"prompt": [USER], "completion": [ASSISTANT]},
        {"messages": [USER, ASSISTANT]},
    )
    assert {row.key for row in found} == {found[0].key}
    assert all(row.prompt == [USER] and row.turns == [ASSISTANT] for row in found)
    assert found[2].name.endswith("rows.jsonl line 3")


def test_turns_of_a_prompt_are_context_and_those_of_messages_are_learned(tmp_path: Path) -> None:
    turns = [USER, ASSISTANT, TOOL, ASSISTANT]
    prompted, whole = read(
        tmp_path, {"prompt": [*turns[:2], USER], "completion": "4"}, {"messages": turns}
    )
    assert prompted.prompt == [USER, ASSISTANT, USER] and prompted.turns == [ASSISTANT]
    assert whole.prompt == [USER] and whole.turns == turns[1:]


def test_the_recipes_system_message_comes_first(tmp_path: Path) -> None:
    (row,) = read(tmp_path, {"prompt": "2 + 2?", "completion": "4"}, system="be brief")
    assert row.prompt == [SYSTEM, USER]


def test_parquet_is_read_with_its_nulls(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table(
        {
            "messages": [None, [USER, {**ASSISTANT, "name": None}]],
            "prompt": ["2 + 2?", None],
            "completion": ["4", None],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    first, second = rows.read(tmp_path / "rows.parquet", recipe())
    assert first.turns == second.turns == [ASSISTANT] and second.name.endswith("row 2")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "is not JSON"),
        ([1], "a row must be an object"),
        ({"prompt": "q", "completion": "\ud800"}, "half characters"),
        ({"prompt": [{"role": "user", "content": "\udc00"}], "completion": "a"}, "half characters"),
        ({"question": "q"}, "has the fields question; it needs `prompt` and `completion`"),
        ({"prompt": "q", "completion": ""}, "a turn of the assistant is empty"),
        ({"prompt": "", "completion": "a"}, "field 'prompt' is ''"),
        ({"prompt": "q", "completion": 4}, "field 'completion' is 4"),
        ({"prompt": "q", "completion": [USER]}, "turn 1 behind the prompt is of 'user'"),
        ({"prompt": "q", "completion": [ASSISTANT] * 2}, "must be the user's or a tool's"),
        ({"prompt": "q", "completion": [ASSISTANT, TOOL]}, "the last turn is of 'tool'"),
        ({"messages": [USER]}, "has no turn of the assistant"),
        ({"messages": [ASSISTANT]}, "has no turn of the assistant behind the first message"),
        ({"messages": "q"}, "must be a list of {role, content}"),
        ({"messages": [USER, {**ASSISTANT, "tool_calls": []}]}, "role and content, nothing else"),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, "role and content"),
        ({"messages": [SYSTEM, USER, ASSISTANT]}, "a system message of its own"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, line: Any, words: str) -> None:
    good = {"prompt": "q", "completion": "a"}
    with pytest.raises(InvalidInput) as caught:
        read(tmp_path, good, line, system="be kind")
    assert "rows.jsonl line 2" in str(caught.value) and words in str(caught.value)


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no rows"):
        read(tmp_path, "")
    with pytest.raises(InvalidInput, match="no such file"):
        rows.read(tmp_path / "other.jsonl", recipe())
