"""Programs in texts, and the comparison of their answers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan.programs import fenced, same

PYTHON = ("python", "")
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na\n```", "a\n"),
        ("say\n```\na\nb\n```\nend", "a\nb\n"),
        ("```python\na\n```\nor better\n```python\nb\n```", "b\n"),
        ("```python\na", "a"),
        ("```Python title\na\n```", "a\n"),
        ("  ```python\na\n  ```", "a\n"),
        ("```bash\nls\n```", None),
        ("```python\na\n```\n```bash\nls\n```", "a\n"),
        ("no program", None),
        ("inline ```python a```", None),
        ("```python", None),
        ("", None),
    ],
)
def test_the_last_block_of_the_language_is_the_program(text: str, program: str | None) -> None:
    assert fenced.last(text, PYTHON) == program


@pytest.mark.parametrize(
    "text", ["```" + "a" * 1_000_000, "```\n" * 200_000, "```python\n" * 100_000, "` `" * 300_000]
)
def test_a_long_text_is_searched_in_one_pass(text: str) -> None:
    fenced.last(text, PYTHON)  # a quadratic search would take hours, and the test's deadline


@given(JSON)
def test_a_value_is_the_same_as_itself_through_json(value: object) -> None:
    assert same.same(same.value(json.dumps(value).encode()), value, 0.0)


@given(JSON, JSON)
def test_the_comparison_is_symmetric(one: object, other: object) -> None:
    assert same.same(one, other, 1e-9) == same.same(other, one, 1e-9)


@pytest.mark.parametrize(
    ("found", "expected", "equal"),
    [
        (1, True, False),
        (True, 1, False),
        (0, False, False),
        (None, 0, False),
        (1, 1.0, True),
        (0.1 + 0.2, 0.3, True),
        (0.3001, 0.3, False),
        (10**400, 1.0, False),
        (2**60 + 1, 2**60, False),
        ("1", 1, False),
        ([1, 2], [1, 2, 3], False),
        ([[1.0]], [[1]], True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
    ],
)
def test_values_are_the_same_or_not(found: object, expected: object, equal: bool) -> None:
    assert same.same(found, expected, 1e-9) is equal


def test_values_that_are_nested_without_end_are_not_the_same() -> None:
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    assert not same.same(deep, deep, 0.0)
    with pytest.raises(ValueError, match="nested"):
        same.value(b"[" * 100_000)


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"[-Infinity]", b"", b"\xff", b"1 2", b"{"])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|nested|Expecting|decode|Extra"):
        same.value(text)


def test_lines_are_the_same_but_for_space_at_their_ends() -> None:
    assert same.same_lines(b"1 \r\n2\n\n", "1\n2")
    assert not same.same_lines(b"1\n 2", "1\n2")
    assert not same.same_lines(b"12", "1\n2")
    assert not same.same_lines(b"\xff", "")
