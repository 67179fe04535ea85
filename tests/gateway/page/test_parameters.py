"""Parameters and cursors: whatever comes is read, or refused with the value and what is allowed."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan.errors import InvalidInput
from services.gateway.page.http.parameters import (
    LAST,
    MOST_ID,
    Parameter,
    cursor,
    place_of,
    read_all,
)

NUMBERS = st.integers(0, LAST)
IDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=MOST_ID)


@given(NUMBERS, IDS)
def test_a_cursor_comes_back_as_its_place(number: int, name: str) -> None:
    assert place_of("runs", cursor("runs", number, name), int, str) == (number, name)
    assert place_of("runs", None, int, str) is None


@given(st.text(max_size=80))
def test_any_other_text_is_no_cursor(text: str) -> None:
    try:
        place = place_of("trees", text, int)
    except InvalidInput as error:
        assert "only `next` of an answer" in str(error)
    else:
        assert (place is not None and cursor("trees", *place) == text.rstrip("=")) or text


@pytest.mark.parametrize(
    "place",
    [
        ["runs", 1],
        ["trees"],
        ["trees", "1"],
        ["trees", True],
        ["trees", -1],
        ["trees", 2**63],
        ["trees", 1.5],
        ["trees", 1, 2],
        {"trees": 1},
        "trees",
        None,
    ],
)
def test_a_cursor_of_another_list_or_form_is_refused(place: Any) -> None:
    text = base64.urlsafe_b64encode(json.dumps(place).encode()).decode()
    with pytest.raises(InvalidInput):
        place_of("trees", text, int)


def test_a_cursor_with_deep_nesting_is_refused() -> None:
    text = base64.urlsafe_b64encode(b"[" * 100_000).decode()
    with pytest.raises(InvalidInput):
        place_of("trees", text, int)


NUMBER = Parameter(name="limit", about="", kind="integer", least=1, most=500, default=50)
WORD = Parameter(name="state", about="", kind="choice", choices=("CLOSED", "DROPPED"))
DIGITS = Parameter(name="row", about="", kind="hex", least=8, most=64)
TEXT = Parameter(name="label", about="")
ALL = (NUMBER, WORD, DIGITS, TEXT)


@given(st.text(max_size=300))
def test_a_value_is_within_its_bounds_or_named_in_the_error(raw: str) -> None:
    for parameter in ALL:
        try:
            value = parameter.read(raw)
        except InvalidInput as error:
            assert f"{parameter.name}=" in str(error) and "allowed" in str(error)
            continue
        if parameter is NUMBER:
            assert 1 <= value <= 500 and raw.isascii() and raw.isdigit()
        elif parameter is WORD:
            assert value in WORD.choices
        elif parameter is DIGITS:
            assert value.hex() == raw and 4 <= len(value) <= 32
        else:
            assert value == raw and 1 <= len(raw) <= MOST_ID and "\0" not in raw


@given(st.integers())
def test_a_limit_is_bounded(number: int) -> None:
    if 1 <= number <= 500:
        assert NUMBER.read(str(number)) == number
    else:
        with pytest.raises(InvalidInput, match="a whole number from 1 to 500 is allowed"):
            NUMBER.read(str(number))


def test_the_bounds_themselves_are_within() -> None:
    assert [NUMBER.read(raw) for raw in ("1", "500")] == [1, 500]
    assert [len(DIGITS.read("a" * n)) for n in (8, 64)] == [4, 32]
    assert TEXT.read("x" * MOST_ID) == "x" * MOST_ID


@pytest.mark.parametrize("raw", ["", "a\0b", "\ud800", "x" * (MOST_ID + 1)])
def test_a_text_that_no_database_takes_is_refused(raw: str) -> None:
    with pytest.raises(InvalidInput, match="1 to 200 characters other than NUL are allowed"):
        TEXT.read(raw)


@pytest.mark.parametrize("raw", ["१", "²", "1e2", "+1", " 1", "1_0", "0x1", "", "9" * 400])
def test_only_plain_digits_are_a_number(raw: str) -> None:
    with pytest.raises(InvalidInput):
        NUMBER.read(raw)


@pytest.mark.parametrize("raw", ["AB" * 4, "abc", "ab", "ab" * 33, "abcdefgh", "ａｂ" * 4])
def test_only_lower_case_hex_of_whole_bytes_is_an_id(raw: str) -> None:
    with pytest.raises(InvalidInput, match="8 to 64 lower-case hex digits"):
        DIGITS.read(raw)


def test_unknown_and_repeated_parameters_are_refused_with_what_is_known() -> None:
    with pytest.raises(InvalidInput, match=r"unknown parameter 'limits'; known: label, limit"):
        read_all(ALL, [("limits", "1")])
    with pytest.raises(InvalidInput, match="'limit' is given twice"):
        read_all(ALL, [("limit", "1"), ("limit", "2")])
    with pytest.raises(InvalidInput, match="there are none here"):
        read_all((), [("x", "1")])
    assert read_all(ALL, []) == {"limit": 50, "state": None, "row": None, "label": None}
