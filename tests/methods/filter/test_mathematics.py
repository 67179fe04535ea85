"""math: what is equal is 1, hedges are 0, rows without an expression have no score."""

import logging
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import Scored, Unscorable
from methods.filter.mathematics import Mathematics

MATH = Mathematics(seconds=0.6)


def value(completion, answer):
    score = MATH.score(completion, {"answer": answer})
    assert isinstance(score, Scored)
    return score.value


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("\\boxed{1/2}", "0.5"),
        ("so it is $\\frac{1}{2}$.", "1/2"),
        ("\\frac{1}{2}", 0.5),
        ("The answer is 42.", 42),
        ("$(x+1)^2$", "x^2 + 2x + 1"),
        ("\\boxed{\\sqrt{12}}", "2\\sqrt{3}"),
        ("first 7\nthen \\boxed{8}", "$8$"),
        ("x = 3", "3"),
        ("1,234", "1234"),
        ("0.333333", "1/3"),
        ("1e3", 1000.0),
        ("0.0000001", 1e-7),
        ("(1, 2)", "(1,2)"),
        ("\\boxed{2, 3}", "\\{3, 2\\}"),
        ("50%", "1/2"),
    ],
)
def test_equal_expressions_are_right(completion, answer):
    assert value(completion, answer) == 1.0


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("3 or 4", "3"),
        ("$3$ or $4$", "3"),
        ("\\boxed{3} or \\boxed{4}", "3"),
        ("\\boxed{}", "3"),
        ("-3", "3"),
        ("not 3, but 4", "3"),
        ("1e3", "1"),
        ("1e999", "1"),
        ("0", "1e-7"),
        ("0.0", "1/100000000"),
        ("0.00000012", 1e-7),
        ("0.333", "1/3"),
        ("y", "x"),
        ("nan", "3"),
        ("\\boxed{\\frac{0}{0}}", "3"),
        ("__import__('os').system('id')", "3"),
        ("{" * 9000, "3"),
        ("\\boxed{" * 3000, "3"),
        ("\x00", "3"),
        ("3 " * 500_000 + "4", "3"),
    ],
    ids=range(20),
)
def test_others_are_not(completion, answer):
    assert value(completion, answer) == 0.0


def test_only_where_it_is_not_strict_another_name_will_do():
    assert value("$y + 1$", "x + 1") == 0.0
    assert Mathematics(strict=False).score("$y + 1$", {"answer": "x + 1"}).value == 1.0
    assert value("(1, 2)", "\\{1, 2\\}") == 1.0  # brackets are not compared, strictly or not


@pytest.mark.parametrize(
    "answer",
    [None, True, [3], "", " ", "Friday", "no answer", "9" * 5000, float("nan"), 1e300],
)
def test_a_row_without_an_expression_has_no_score(answer):
    assert isinstance(MATH.score("\\boxed{dayFri}", {"answer": answer}), Unscorable)
    assert isinstance(MATH.score("3", {}), Unscorable)
    assert isinstance(MATH.score("3", {"answer": 10**5000}), Unscorable)


def test_a_tower_is_wrong_after_its_time(caplog):
    with caplog.at_level(logging.DEBUG):
        assert value("\\boxed{9^{9^{9^{9}}}}", "3") == 0.0
    assert not [r for r in caplog.records if r.levelno >= logging.INFO]  # texts of models


def test_time_of_others_is_not_its_own(monkeypatch):
    slow = Mathematics(seconds=0.05)
    slow.warm({})

    def waits(*_, **__):
        time.sleep(0.15)  # it does not run
        return True

    monkeypatch.setattr("math_verify.verify", waits)
    assert slow.score("3", {"answer": "3"}).value == 1.0


def test_without_its_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"'math': .*math_verify.*pip install 'banyan-rl"):
        registry.build("filter", "math", {})


@pytest.mark.parametrize("wrong", [{"decimals": -1}, {"seconds": 0.0}, {"strict": 1}])
def test_bad_settings_are_refused(wrong):
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        registry.build("filter", "math", wrong)


@settings(max_examples=30, deadline=None)
@given(st.integers(-10_000, 10_000), st.integers(-10_000, 10_000))
def test_numbers_are_right_exactly_when_equal(one, other):
    assert value(f"I get \\boxed{{{one}}}", other) == float(one == other)
    assert value(f"{one}", one) == 1.0
