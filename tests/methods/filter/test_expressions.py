"""Answers that would be evaluated: the accepted forms, and refusals before any evaluation."""

from typing import Any

import pytest

from methods.filter import expressions
from methods.filter.expressions import Refused

ROW: dict[str, Any] = {
    "answer": "gold text",
    "metadata": {"variable": "x", "numbers": [1, 1, 2, 49]},
}
LONG = "1+" * 2_000 + "1"


@pytest.mark.parametrize(
    ("read", "answer", "said"),
    [
        (expressions.whole_numbers, " 3*(4 - 1)/2 # 100", "3 * (4 - 1) / 2"),
        (expressions.polynomial, "x**2 - 3*y", "x ** 2 - 3 * y"),
        (expressions.antiderivative, "sin(x)**2/2 + C", "sin(x) ** 2 / 2 + C"),
        (expressions.literal, " gold text ", " gold text "),
        (expressions.literal, "[['Q', '_']]", "[['Q', '_']]"),
    ],
)
def test_what_is_an_answer_is_read_without_what_is_none(read: Any, answer: str, said: str) -> None:
    assert read(answer, ROW) == said


@pytest.mark.parametrize(
    "answer",
    ["2**3", "1.5*2", "True + 1", "1e3", "x + 1", "abs(1)", "'a'*3", "1 if 1 else 2", "1//2", LONG],
)
def test_arithmetic_is_of_whole_numbers_and_four_operators(answer: str) -> None:
    with pytest.raises(Refused):
        expressions.whole_numbers(answer, ROW)


@pytest.mark.parametrize(
    "answer", ["49/2*1*1", "(49 - 1)/2 + 0", "(49 - 1)/(2 - 1 - 1)", "(49 - 1)/1/2 + 0"]
)
def test_24_is_exactly_24_of_the_rows_own_numbers(answer: str) -> None:
    with pytest.raises(Refused):
        expressions.game24(answer, ROW)


def test_24_may_be_made_of_fractions_and_signs() -> None:
    assert expressions.game24("-(1 - 49)/2*1", ROW)
    assert expressions.game24("8/(3 - 8/3)", {"metadata": {"numbers": [3, 3, 8, 8]}})


@pytest.mark.parametrize(
    "answer",
    ["xy", "X", "x(2)", "x.real", "x[0]", "sin(x)", "(x**20)**20", "x**(2**2)", "x**201", "1e999"],
)
def test_a_polynomial_is_of_single_letters_and_bounded_powers(answer: str) -> None:
    with pytest.raises(Refused):
        expressions.polynomial(answer, ROW)


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "y",
            "sin",
            "sin + C",
            "x(2)",
            "sin(x, x)",
            "sin()",
            "sin(x, evaluate=False)",
            "sin(*x)",
            "sin(x).y",
            "(sin)(x)(x)",
        ),
        *(
            "expand(x)",
            "Integral(x, x)",
            "x**True",
            "x if x else C",
            "(x := 1)",
            "[x]",
            "lambda: x",
            "'x'",
            "x < C",
        ),
    ],
)
def test_an_antiderivative_is_a_formula_of_elementary_functions(answer: str) -> None:
    with pytest.raises(Refused):
        expressions.antiderivative(answer, ROW)


@pytest.mark.parametrize(
    "answer",
    ["oracle_answer", "[x for x in y]", "f'{x}'", "1 + x", "(" * 5_000, "[" + "1," * 3_000 + "]"],
)
def test_a_literal_is_no_code(answer: str) -> None:
    with pytest.raises(Refused):
        expressions.literal(answer, ROW)
