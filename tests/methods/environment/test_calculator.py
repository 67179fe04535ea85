"""The calculator: exact values, and words for all that has none."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan.environments.observation import Effect, ToolOutcome
from methods.environment.calculator import Calculator

CALC = Calculator()


def answered(expression: str) -> str:
    return CALC.step(b"", f"So <calc>{expression}</calc>").text


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("123 * 456", "56088"),
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("7 % 4", "3"),
        ("2 ** 10", "1024"),
        ("2 ** -1", "0.5"),
        ("1 / 3", "0.3333333333"),
        ("-1 / 3", "-0.3333333333"),
        ("2 / 3", "0.6666666667"),
        ("0.1 + 0.2", "0.3"),
        ("1 / 100000", "0.00001"),
        ("1 / 10 ** 12", "0.0"),
        ("10 / 4", "2.5"),
        ("-5", "-5"),
        ("+5", "5"),
        ("1e3", "1000"),
        ("  4  ", "4"),
    ],
)
def test_a_value_is_exact(expression: str, value: str) -> None:
    assert answered(expression) == value


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("1 / 0", "division by zero"),
        ("5 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("9 ** 9 ** 9", "exponents are whole numbers up to 64"),
        ("2 ** 0.5", "exponents are whole numbers"),
        ("9 ** 64 * 9 ** 64", "more than 100 digits"),
        ("1e999", "no finite number"),
        ("1j", "no number"),
        ("True", "no number"),
        ("x + 1", "only numbers"),
        ("__import__('os').system('id')", "only numbers"),
        ("[1, 2]", "only numbers"),
        ("1 if 1 else 2", "only numbers"),
        ("", "no arithmetic"),
        ("1 +", "no arithmetic"),
        ("\0", "no arithmetic"),
        ("(" * 150, "no arithmetic"),
        ("1" * 201, "more than 200 characters"),
    ],
)
def test_all_else_is_an_error_that_the_path_reads(expression: str, why: str) -> None:
    answer = CALC.step(b"", f"<calc>{expression}</calc>")
    assert answer.text.startswith(f"error: {why}") and answer.outcome is ToolOutcome.FAILED


@pytest.mark.parametrize("action", ["", "12 * 12", "<calc>1", "</calc>", "</calc><calc>"])
def test_what_is_no_call_is_malformed(action: str) -> None:
    answer = CALC.step(b"", action)
    assert answer.outcome is ToolOutcome.MALFORMED and "<calc>" in answer.text


def test_the_last_call_counts_and_nothing_changes() -> None:
    answer = CALC.step(b"", "<calc>1</calc> no <calc>2</calc>\n")
    assert (answer.text, answer.effect, answer.state, answer.reward) == ("2", Effect.NONE, b"", 0.0)
    assert CALC.reset({"answer": 3}, 7) == b""


@given(st.text(max_size=300))
def test_any_text_is_answered(text: str) -> None:
    for action in (text, f"<calc>{text}</calc>"):
        answer = CALC.step(b"", action)
        assert answer.text and len(answer.text) < 300 and answer.state == b""


@given(st.integers(-(10**20), 10**20), st.integers(-(10**20), 10**20), st.sampled_from("+-*"))
def test_whole_numbers_are_pythons(a: int, b: int, sign: str) -> None:
    assert answered(f"{a} {sign} {b}") == str(eval(f"({a}) {sign} ({b})"))


@given(st.fractions(max_denominator=10**6), st.integers(0, 12))
def test_decimals_are_rounded(value: Fraction, digits: int) -> None:
    shown = Calculator(digits).step(b"", f"<calc>{value.numerator} / {value.denominator}</calc>")
    found = Fraction(shown.text)
    assert abs(found - value) <= Fraction(1, 2 * 10**digits)


@pytest.mark.parametrize("digits", [-1, 101, 1.5, True])
def test_digits_are_checked(digits: int) -> None:
    with pytest.raises(ValueError, match="digits must be a whole number in"):
        Calculator(digits)
