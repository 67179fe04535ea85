"""Rows from CSV and TSV files: what is read, and the names of bad lines."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from banyan.errors import InvalidInput
from banyan.recipe import Task
from services.gateway.tasks import load
from services.gateway.tasks.sources import of_file

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
NAME = TEXT.filter(lambda name: name.strip() and not name.startswith("\ufeff"))


def task(path: Path | str, **more: object) -> Task:
    return Task(name="file", path=str(path), reward="rewards:exact", **more)


def write(folder: Path, text: str, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


@st.composite
def tables(draw: st.DrawFn) -> list[list[str]]:
    header = draw(st.lists(NAME, min_size=1, max_size=4, unique=True))
    fields = st.lists(TEXT, min_size=len(header), max_size=len(header))
    return [header, *draw(st.lists(fields, max_size=5))]


@pytest.mark.parametrize(("suffix", "dialect"), [("csv", "excel"), ("tsv", "excel-tab")])
@given(table=tables(), encoding=st.sampled_from(["utf-8", "utf-8-sig"]))
@example(table=[["a", "b"], ["", ""], ["\r", "\n"], ['"', '""'], [",", "\t"]], encoding="utf-8")
@example(table=[["only"], [""], ["\ufeff"], ["\0"], ["\u2028"]], encoding="utf-8-sig")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_rows_that_the_csv_module_wrote_are_read_back(
    tmp_path: Path, suffix: str, dialect: str, table: list[list[str]], encoding: str
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, dialect).writerows(table)
    path = tmp_path / f"rows.{suffix}"
    path.write_bytes(text.getvalue().encode(encoding))
    header, *records = table
    assert [row for _, row in of_file(path)] == [
        dict(zip(header, record, strict=True)) for record in records
    ]


def test_all_values_are_texts_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    write(tmp_path, "\nprompt,gold\n\n2 + 2?,4\n\ntrue?,true\n")
    assert load(task("rows.csv"), tmp_path) == [
        {"prompt": "2 + 2?", "gold": "4"},
        {"prompt": "true?", "gold": "true"},
    ]


def test_the_suffix_tells_the_delimiter_in_any_case(tmp_path: Path) -> None:
    write(tmp_path, "prompt\tgold\na,b\t1\n", "rows.TSV")
    assert load(task("rows.TSV"), tmp_path) == [{"prompt": "a,b", "gold": "1"}]


def test_a_record_is_named_by_its_first_line(tmp_path: Path) -> None:
    path = write(tmp_path, 'prompt,gold\n"one\ntwo\nthree",1\nb,2\n')
    assert [where for where, _ in of_file(path)] == [f"{path} line 2", f"{path} line 5"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prompt,gold\na,1\nb\n", r"line 3 has 1 field, and the header names 2: b; put"),
        ("prompt,gold\na,1,2\n", r"line 2 has 3 fields, and the header names 2: a, 1, 2; put"),
        ('prompt,gold\n"a\nb",1\nc\n', r"line 4 has 1 field,"),
        ('prompt,gold\n"a" b,1\n', r"line 2 is not CSV: .*double one inside of quotes"),
        ('prompt,gold\n"a,1\nb,2\n', r"line 2 is not CSV: unexpected end of data"),
        ("prompt,,gold\na,1,2\n", r"line 1: column 2 has no name; name all columns there"),
        ("prompt, \na,1\n", r"line 1: column 2 has no name"),
        ("prompt,gold,prompt\na,1,2\n", r"line 1 names two columns 'prompt'; give each a name"),
        ("question,gold\na,1\n", r"line 2: there is no field 'prompt', only question, gold"),
        (
            "prompt;gold\na;1\n",
            r"only prompt;gold.* are parted by ',', and not by ';'",
        ),
        ("prompt,gold\n ,1\n", r"line 2: field 'prompt' is ' '; it must be a text"),
        ("prompt,completion\na,b\n", r"line 2 has a field 'completion'"),
        ("", r"rows.csv is empty; its first line must name the columns"),
        ("\n\n", r"rows.csv is empty"),
        ("prompt,gold\n", r"rows.csv holds no rows"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    write(tmp_path, text)
    with pytest.raises(InvalidInput, match=complaint) as caught:
        load(task("rows.csv"), tmp_path)
    assert "rows.csv" in str(caught.value)


def test_a_long_message_is_cut(tmp_path: Path) -> None:
    write(tmp_path, "prompt,gold\n" + ",".join("x" * 5_000 for _ in range(9)) + "\n")
    with pytest.raises(InvalidInput, match=r"line 2 has 9 fields") as caught:
        load(task("rows.csv"), tmp_path)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("field", ["x" * 140_000, '"' + "a,b\n" * 50_000])
def test_a_field_that_csv_cannot_hold_is_refused_by_its_first_line(
    tmp_path: Path, field: str
) -> None:
    before = csv.field_size_limit()
    write(tmp_path, f"prompt,gold\na,1\n{field},2\n")
    with pytest.raises(InvalidInput, match=r"line 3 has a field of more than 131,072 characters"):
        load(task("rows.csv"), tmp_path)
    assert csv.field_size_limit() == before, "the limit is the process's, not ours"


def test_a_row_that_no_message_could_carry_is_refused_with_its_size(tmp_path: Path) -> None:
    write(tmp_path, "prompt,a,b,c\na," + ",".join("x" * 100_000 for _ in range(3)) + "\n")
    with pytest.raises(InvalidInput, match=r"line 2 is a row of 293 KiB .* 256"):
        load(task("rows.csv"), tmp_path)


def test_a_file_that_is_no_utf8_text_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes("prompt,gold\nßü,1\n".encode("latin-1"))
    with pytest.raises(InvalidInput, match=r"rows.csv is not UTF-8 text: it holds the byte 0xdf"):
        load(task("rows.csv"), tmp_path)
    with pytest.raises(InvalidInput, match=r"no file .*more.csv"):
        load(task("more.csv"), tmp_path)


def test_lines_are_read_one_by_one(tmp_path: Path) -> None:
    """The first row is there before a bad line far behind it is read."""
    path = write(tmp_path, "prompt\n" + "good\n" * 200_000 + '"bad\n')
    records = of_file(path)
    assert next(records) == (f"{path} line 2", {"prompt": "good"})
    with pytest.raises(InvalidInput, match="line 200002 is not CSV"):
        list(records)
