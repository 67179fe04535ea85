"""Rows from the user's file: accepted forms, and the names of bad rows."""

import json
import os
from datetime import datetime
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from banyan.errors import InvalidInput
from banyan.recipe import Task
from services.gateway.tasks import load, messages, split
from services.gateway.tasks.sources import of_file

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]


def task(path, **more):
    return Task(name="file", path=str(path), reward="rewards:exact", **more)


def write(folder: Path, *lines: str) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_relative_path_is_meant_from_the_base_and_blank_lines_are_skipped(tmp_path):
    write(tmp_path, '{"prompt": "a", "gold": 1}', "", '{"prompt": "b", "gold": 2}')
    assert load(task("rows.jsonl"), tmp_path) == [
        {"prompt": "a", "gold": 1},
        {"prompt": "b", "gold": 2},
    ]


def test_parquet_and_json_lines_give_the_same_rows(tmp_path):
    rows = [{"prompt": f"p{i}", "gold": i, "more": {"tags": ["x", "y"]}} for i in range(5)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    write(tmp_path, *(json.dumps(row) for row in rows))
    assert load(task("rows.parquet"), tmp_path) == load(task("rows.jsonl"), tmp_path) == rows


def test_a_prompt_may_be_a_list_of_messages(tmp_path):
    write(tmp_path, json.dumps({"prompt": CHAT}))
    rows = load(task("rows.jsonl"), tmp_path)
    assert messages(rows[0], task("rows.jsonl")) == CHAT


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"prompt": "a"', "not JSON"),
        ('{"prompt": "a", "gold": 1, "gold": 2}', "field 'gold' stands twice"),
        ('{"prompt": "a", "more": {"x": 1, "x": 1}}', "field 'x' stands twice"),
        ("[1, 2]", r"\[1, 2\]"),
        ('{"question": "a"}', "no field 'prompt', only question"),
        ('{"prompt": 5}', "is 5"),
        ('{"prompt": "  "}', "not empty"),
        ('{"prompt": []}', r"is \[\]"),
        ('{"prompt": [{"role": "wizard", "content": "x"}]}', "wizard"),
        ('{"prompt": [{"role": "user"}]}', "role and content"),
        ('{"prompt": "a", "x": NaN}', "NaN"),
        ('{"prompt": "a", "completion": "b"}', "rename"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_row_is_named_by_line_and_value(tmp_path, line, complaint):
    write(tmp_path, '{"prompt": "good"}', line)
    with pytest.raises(InvalidInput, match=complaint) as caught:
        load(task("rows.jsonl"), tmp_path)
    assert "line 2" in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_row_that_no_message_could_carry_is_refused_with_its_size(tmp_path, suffix):
    rows = [{"prompt": "good", "note": "x" * 250_000}, {"prompt": "good", "note": "x" * 300 * 1024}]
    write(tmp_path, *(json.dumps(row) for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    with pytest.raises(
        InvalidInput, match=rf"rows.{suffix} (line|row) 2 is a row of 300 KiB .* 256"
    ):
        load(task(f"rows.{suffix}"), tmp_path)


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n')
    assert load(task("rows.jsonl"), tmp_path) == [{"prompt": "a"}]


def test_a_folder_is_said_to_be_one(tmp_path):
    with pytest.raises(InvalidInput, match="is a folder"):
        load(task(tmp_path), tmp_path)


def test_a_system_message_twice_is_refused(tmp_path):
    write(tmp_path, json.dumps({"prompt": CHAT}))
    with pytest.raises(InvalidInput, match=r"line 1.*keep one"):
        load(task("rows.jsonl", system="Be long."), tmp_path)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_files_that_cannot_be_read_are_refused_with_their_path(tmp_path, name):
    with pytest.raises(InvalidInput, match=f"no file .*{name}"):
        load(task(name), tmp_path)
    (tmp_path / name).write_bytes(b"\xff\xfe\x00PAR")
    with pytest.raises(InvalidInput, match=name):
        load(task(name), tmp_path)
    (tmp_path / "rows.jsonl").write_text("\n")
    with pytest.raises(InvalidInput, match="no rows"):
        load(task("rows.jsonl"), tmp_path)


def test_parquet_values_without_a_json_form_are_named_by_row(tmp_path):
    rows = [{"prompt": "a", "blob": b"\x00"}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    with pytest.raises(InvalidInput, match="row 1 holds a value"):
        load(task("rows.parquet"), tmp_path)


def test_the_same_prompt_never_lands_on_both_sides(tmp_path):
    write(
        tmp_path,
        *(json.dumps({"prompt": f"  p{i % 7}  {'x' * (i % 2)}", "n": i}) for i in range(70)),
    )
    source = task("rows.jsonl", holdout=0.4)
    sides = split(load(source, tmp_path), source)
    prompts = [
        {" ".join(row["prompt"].split()) for row in side} for side in (sides.train, sides.held_out)
    ]
    assert not prompts[0] & prompts[1]
    assert len(sides.held_out) == 25  # five problems of five rows fit into 28


def test_one_problem_is_held_out_even_if_the_share_is_tiny(tmp_path):
    write(tmp_path, *(json.dumps({"prompt": f"p{i}"}) for i in range(3)))
    source = task("rows.jsonl", holdout=0.01)
    sides = split(load(source, tmp_path), source)
    assert (len(sides.train), len(sides.held_out)) == (2, 1)
    assert split(load(source, tmp_path), task("rows.jsonl", holdout=0.0)).held_out == []


@pytest.mark.parametrize(("name", "many"), [("rows.pq", 70_000), ("rows.PARQUET", 2)])
def test_a_table_has_the_place_of_each_row_across_its_batches(tmp_path, name, many):
    table = pyarrow.table({"prompt": [str(number) for number in range(1, many + 1)]})
    pyarrow.parquet.write_table(table, tmp_path / name)
    found = of_file(tmp_path / name)
    wanted = [(f"{tmp_path / name} row {n}", {"prompt": str(n)}) for n in range(1, many + 1)]
    assert list(found) == wanted


def _text_that_is_not_utf8() -> pyarrow.Array:
    ends = pyarrow.py_buffer(b"\0\0\0\0\2\0\0\0")
    return pyarrow.Array.from_buffers(
        pyarrow.string(), 1, [None, ends, pyarrow.py_buffer(b"\xff\xfe")]
    )


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (_text_that_is_not_utf8(), "UnicodeDecodeError"),
        (pyarrow.array([2**61], pyarrow.timestamp("us")), "OverflowError"),
        (pyarrow.array([1], pyarrow.timestamp("us", tz="Mars/Base")), "Mars/Base"),
    ],
    ids=["text", "time", "zone"],
)
def test_parquet_values_that_python_has_no_form_for_are_named_by_column(
    tmp_path, values, complaint
):
    table = pyarrow.table({"prompt": ["a"], "gold": values})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(InvalidInput, match=rf"rows 1 to 1: column 'gold' holds .*{complaint}"):
        load(task("rows.parquet"), tmp_path)


def test_parquet_columns_of_one_name_are_refused(tmp_path):
    table = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, names=["prompt"] * 2)
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(InvalidInput, match="two columns 'prompt'; give each a name of its own"):
        load(task("rows.parquet"), tmp_path)


def test_a_value_without_a_json_form_is_named_by_its_field(tmp_path):
    write(tmp_path, '{"prompt": "a", "x": 1, "gold": 1e999}')
    with pytest.raises(InvalidInput, match=r"line 1 .* in field 'gold': .*; convert it first"):
        load(task("rows.jsonl"), tmp_path)


def test_a_pipe_and_a_link_to_itself_are_not_said_to_be_missing(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    for name in ("pipe.csv", "loop.csv"):
        with pytest.raises(InvalidInput, match="name a regular file"):
            load(task(name), tmp_path)


def test_a_file_that_is_one_list_is_told_what_a_line_holds(tmp_path):
    write(tmp_path, "[", '{"prompt": "a"}', "]")
    with pytest.raises(InvalidInput, match=r"line 1 is not JSON: .*each line must hold one object"):
        load(task("rows.jsonl"), tmp_path)


def test_the_place_in_a_line_is_said_once_and_a_broken_table_has_a_remedy(tmp_path):
    write(tmp_path, '{"prompt": "a"}', '{"prompt": }')
    with pytest.raises(InvalidInput) as refused:
        load(task("rows.jsonl"), tmp_path)
    assert "line 2 is not JSON" in str(refused.value) and "at character 12;" in str(refused.value)
    assert "column" not in str(refused.value), "Python counts lines and columns within this one"
    (tmp_path / "rows.parquet").write_text("none")
    with pytest.raises(InvalidInput, match="write it anew, or use JSON Lines"):
        load(task("rows.parquet"), tmp_path)


def test_of_two_fields_without_a_json_form_the_first_is_named_with_its_own_cause(tmp_path):
    row = {"prompt": "a", "when": datetime(2026, 1, 1), "raw": b"x"}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "rows.parquet")
    with pytest.raises(InvalidInput, match=r"in field 'when': Object of type datetime"):
        load(task("rows.parquet"), tmp_path)


def test_of_a_thousand_columns_a_message_names_the_first(tmp_path):
    write(tmp_path, json.dumps({f"column {i}": 1 for i in range(1000)}))
    with pytest.raises(InvalidInput) as refused:
        load(task("rows.jsonl"), tmp_path)
    assert "column 9," in str(refused.value) and len(str(refused.value)) < 1500
