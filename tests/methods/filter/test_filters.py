"""Scorers as pure functions: right, wrong, and unscorable completions."""

import json
import math

import pytest

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import Scored, Unscorable
from methods.filter.number import Number
from methods.filter.regex import Regex
from services.verifier.filter.user_function import UserFunction
from services.verifier.store import specs_of


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        ("7", 1.0),
        (" 7.\n", 1.0),
        ("The answer is 7", 1.0),
        ("7.0", 1.0),
        ("007", 1.0),
        ("8", 0.0),
        ("-7", 0.0),
        ("\u22127", 0.0),
        ("", 0.0),
        ("seven", 0.0),
        ("7 7", 0.0),
        ("3 + 4 = 7", 0.0),
        ("1 2 3 4 5 6 7 8 9", 0.0),
        ("7e0", 0.0),
        ("0.7", 0.0),
        ("7" * 100_000, 0.0),
        ("nan", 0.0),
        ("inf", 0.0),
        ("\uff17", 0.0),
    ],
)
def test_number_wants_exactly_one_number(completion, value):
    assert Number().score(completion, {"answer": 7}) == Scored(value)


@pytest.mark.parametrize(
    ("completion", "answer"),
    [("1,234.5", 1234.5), ("x = -3", -3), ("\u22123", "-3"), ("$12", 12), ("0.1", 0.1), ("(5)", 5)],
)
def test_number_reads_signs_thousands_and_fractions(completion, answer):
    assert Number().score(completion, {"answer": answer}) == Scored(1.0)


@pytest.mark.parametrize("answer", [None, "seven", True, [7], math.nan, math.inf])
def test_number_without_a_right_answer_is_unscorable_not_zero(answer):
    assert isinstance(Number().score("7", {"answer": answer}), Unscorable)
    assert isinstance(Number().score("7", {}), Unscorable)


def test_an_integer_of_a_row_that_is_too_long_for_text_is_named() -> None:
    found = Number().score("7", {"answer": 10**5000})
    assert isinstance(found, Unscorable) and "a int that is too large to show" in found.reason


def test_number_has_a_tolerance():
    scorer = registry.build("filter", "number", {"tolerance": 0.5, "answer": "gold"})
    assert [scorer.score(c, {"gold": 2}) for c in ("2.5", "2.6")] == [Scored(1.0), Scored(0.0)]


def test_regex_matches_or_compares_its_group():
    assert Regex(r"\d+").score("a 5", {}) == Scored(1.0)
    assert Regex(r"\d+").score("a b", {}) == Scored(0.0)
    compare = Regex(r"<answer>(.*?)</answer>", equals="gold")
    assert compare.score("x <answer>4\n2</answer>", {"gold": "4\n2"}) == Scored(1.0)
    assert compare.score("<answer>41</answer>", {"gold": 42}) == Scored(0.0)
    assert isinstance(compare.score("<answer>41</answer>", {}), Unscorable)


@pytest.mark.parametrize(
    "settings", [{"pattern": "("}, {"pattern": "a", "equals": "gold"}, {}, {"pattrn": "a"}]
)
def test_bad_settings_are_refused_when_the_recipe_is_read(settings):
    with pytest.raises(InvalidInput, match="regex"):
        registry.build("filter", "regex", settings)


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "1", 1j])
def test_a_user_function_that_returns_no_finite_number_is_unscorable(value):
    outcome = UserFunction(lambda completion, **row: value, "m:f").score("x", {})
    assert isinstance(outcome, Unscorable)
    assert outcome.reason.startswith("NOT_A_NUMBER")


@pytest.mark.parametrize("value", [1, 0.5, True])
def test_a_user_function_gets_completion_and_row(value):
    function = UserFunction(
        lambda completion, gold, **row: value if completion == gold else 0, "m:f"
    )
    assert function.score("x", {"gold": "x", "more": 1}) == Scored(float(value))
    assert len(function.version) == 12


def test_settings_of_a_filter_reach_its_scorer():
    recipe = {"name": "test", "model": "tiny", "task": {"name": "arithmetic"}}
    recipe["filter"] = [{"name": "regex", "settings": {"pattern": "7"}}, {"name": "m:f"}]
    specs = specs_of(json.dumps(recipe))
    assert {n: dict(s.settings) for n, s in specs.items()} == {"regex": {"pattern": "7"}, "m:f": {}}


def test_a_scorer_is_told_what_not_to_read_and_whether_it_may_be_unconfined():
    task = {"name": "file", "path": "rows.jsonl", "reward": "rewards:exact"}
    recipe = {"name": "r", "model": "m", "task": task, "allow_unconfined_scorers": True}
    (spec,) = specs_of(json.dumps(recipe)).values()
    assert (spec.withheld, spec.unconfined) == (("rows.jsonl",), True)
    (plain,) = specs_of(
        json.dumps({"name": "r", "model": "m", "task": {"name": "arithmetic"}})
    ).values()
    assert (plain.withheld, plain.unconfined) == ((), False)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("number", "answer"),
        ("choice", "options"),
        ("choice", "answer"),
        ("exact", "answer"),
        ("math", "answer"),
    ],
)
def test_a_field_that_the_row_lacks_is_called_missing(name: str, field: str) -> None:
    row = {"prompt": "?", "options": ["a", "b"], "answer": "a"}
    outcome = registry.build("filter", name, {}).score("1", {k: row[k] for k in row if k != field})
    assert isinstance(outcome, Unscorable)
    assert f"field '{field}' of the row is missing" in outcome.reason
