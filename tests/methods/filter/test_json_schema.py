"""The scorer of JSON: what is read, what the schema allows, and schemas that are none."""

import importlib.metadata
import json
import urllib.request
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan import registry
from banyan.errors import InvalidInput
from banyan.plugins import Scored, Unscorable
from methods.filter.json_schema import JsonSchema
from services.verifier.sandbox.limits import Limits
from services.verifier.sandbox.pool import Pool
from services.verifier.sandbox.worker import ScorerSpec

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}
TREE = {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "integer"}]}
ANY = {"$comment": "any value"}
NO_JSON = Scored(0.0, {"json": 0.0, "valid": 0.0})
INVALID = Scored(0.0, {"json": 1.0, "valid": 0.0})
VALID = Scored(1.0, {"json": 1.0, "valid": 1.0})


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ('{"name": "Ada"}', VALID),
        (' {"name": "Ada", "age": 36}\n', VALID),
        ('Here:\n```json\n{"name": "Ada"}\n```\nDone.', VALID),
        ('```\n{"name": "Ada"}\n```', VALID),
        ('```JSON\n{"name": "Ada"}', VALID),
        ('```json\n7\n```\n```json\n{"name": "Ada"}\n```', VALID),
        ('```python\nx\n```\n```json\n{"name": "Ada"}\n```', VALID),
        ('{"name": "Ada", "age": 36.0}', VALID),
        ('{"name": "\\ud800"}', VALID),
        ('{"name": "Ada", "age": -1}', INVALID),
        ('{"name": "Ada", "age": true}', INVALID),
        ('{"name": "Ada", "age": "36"}', INVALID),
        ('{"name": "Ada", "more": 1}', INVALID),
        ("{}", INVALID),
        ("[]", INVALID),
        ("null", INVALID),
        ('"{}"', INVALID),
        ('```json\n{"name": "Ada"}\n```\n```json\n7\n```', INVALID),
        ("", NO_JSON),
        ("Ada", NO_JSON),
        ('Here: {"name": "Ada"}', NO_JSON),
        ('{"name": "Ada"} {"name": "Ada"}', NO_JSON),
        ('{"name": "Ada",}', NO_JSON),
        ("{'name': 'Ada'}", NO_JSON),
        ('```python\n{"name": "Ada"}\n```', NO_JSON),
        ('{"name": 7, "name": "Ada"}', NO_JSON),
        ('{"name": "Ada", "age": 1e999}', NO_JSON),
        ('{"name": "Ada", "age": NaN}', NO_JSON),
        ('{"name": "A\0da"}', NO_JSON),
        ('\ufeff{"name": "Ada"}', NO_JSON),
        ('\x1b[0m{"name": "Ada"}', NO_JSON),
        ('{"name": "Ada"}\u202e', NO_JSON),
        ("\ud800", NO_JSON),
        ("9" * 1_000_000, NO_JSON),
        ("[" * 1_000_000, NO_JSON),
        ('{"a":' * 1_000_000, NO_JSON),
    ],
)
def test_verdicts(completion: str, expected: Scored) -> None:
    assert JsonSchema(PERSON).score(completion, {}) == expected


def test_alone_takes_no_block_and_no_text() -> None:
    scorer = JsonSchema({"type": "integer"}, alone=True)
    outcomes = [scorer.score(text, {}) for text in (" 7\n", "```json\n7\n```", "It is 7", "7 7")]
    assert outcomes == [VALID, NO_JSON, NO_JSON, NO_JSON]


@pytest.mark.parametrize(
    ("depth", "expected"), [(63, VALID), (64, NO_JSON), (500, NO_JSON), (100_000, NO_JSON)]
)
def test_levels_are_counted(depth: int, expected: Scored) -> None:
    assert JsonSchema(TREE).score("[" * depth + "1" + "]" * depth, {}) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ('{"a": [1, 2.0], "b": null}', VALID),
        ('{"b": null, "a": [1.0, 2]}', VALID),
        ('{"a": [true, 2], "b": null}', Scored(0.0, {"json": 1.0, "valid": 1.0})),
        ('{"a": [2, 1], "b": null}', Scored(0.0, {"json": 1.0, "valid": 1.0})),
        ('{"a": [1, 2]}', Scored(0.0, {"json": 1.0, "valid": 1.0})),
        ("[]", INVALID),
    ],
)
def test_the_value_may_have_to_be_that_of_the_row(completion: str, expected: Scored) -> None:
    scorer = JsonSchema({"type": "object"}, equals="gold")
    assert scorer.score(completion, {"gold": {"a": [1, 2], "b": None}}) == expected
    assert scorer.score(completion, {}) == Unscorable("EXCEPTION: the row has no field 'gold'")


@pytest.mark.parametrize("schema", [PERSON, json.dumps(PERSON)])
def test_a_row_may_have_its_own_schema(schema: Any) -> None:
    scorer = registry.build("filter", "json-schema", {"schema_field": "shape"})
    assert scorer.score('{"name": "Ada"}', {"shape": schema}) == VALID
    assert scorer.score("{}", {"shape": schema}) == INVALID


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (None, "field 'shape' of the row is None, not a schema"),
        ("{", "EXCEPTION"),
        ("7", "field 'shape' of the row is 7, not a schema"),
        ({"type": "nope"}, "the schema is none: at $.type"),
        ({"pattern": "("}, "the schema is none: at $.pattern"),
        ({"$schema": []}, "the schema cannot be read"),
        ({"$ref": "#/nowhere"}, "the schema cannot be applied"),
        ({"$ref": "#/a/b", "a": 3}, "the schema cannot be applied"),
        ({"$ref": "#"}, "the schema cannot be applied"),
        ({"$ref": "https://example.com/schema.json"}, "the schema cannot be applied"),
    ],
)
def test_a_schema_that_is_none_is_no_zero(schema: Any, why: str) -> None:
    outcome = JsonSchema(schema_field="shape").score("1", {"shape": schema})
    assert isinstance(outcome, Unscorable) and why in outcome.reason and len(outcome.reason) < 500


def test_no_schema_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, *_, **__: fetched.append(str(url)))
    remote = JsonSchema({"$ref": "https://example.com/schema.json"})
    assert isinstance(remote.score("1", {}), Unscorable) and not fetched
    own = JsonSchema({"$ref": "https://json-schema.org/draft/2020-12/schema"})
    assert [own.score(text, {}) for text in ("{}", '{"type": 3}')] == [VALID, INVALID]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({}, "give either schema or schema_field"),
        ({"schema": ANY, "schema_field": "shape"}, "give either schema or schema_field"),
        ({"schema": [ANY]}, "schema must be a mapping"),
        ({"schema": {"type": "nope"}}, r"the schema is none: at \$.type"),
        ({"schema": ANY, "equals": 3}, "equals must be a name, got 3"),
        ({"schema": ANY, "alone": "yes"}, "alone must be true or false, got 'yes'"),
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        registry.build("filter", "json-schema", bad)


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(InvalidInput, match=r"package jsonschema; pip install 'banyan-rl\[ver"):
        registry.build("filter", "json-schema", {"schema": PERSON})


async def test_it_scores_in_a_child_and_a_pattern_without_end_is_wrong() -> None:
    pool = Pool(Limits(deadline_s=1.0))
    try:
        good = await pool.score(ScorerSpec("json-schema", {"schema": PERSON}), '{"name": ""}', {})
        assert good.outcome == VALID
        row = {"shape": {"pattern": "^(a+)+$"}}
        spec = ScorerSpec("json-schema", {"schema_field": "shape"})
        endless = await pool.score(spec, json.dumps("a" * 64 + "!"), row)
        assert endless.outcome == Scored(0.0, {"cpu": 1.0})
    finally:
        await pool.close()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=200, deadline=None)
@given(st.text() | VALUES.map(json.dumps), VALUES)
def test_no_text_raises_or_is_right_for_another_value(completion: str, gold: Any) -> None:
    assert JsonSchema(PERSON).score(completion, {}) in (NO_JSON, INVALID, VALID)
    scorer = JsonSchema(ANY, equals="gold")
    outcomes = [scorer.score(completion, {"gold": value}) for value in (gold, [gold])]
    assert all(isinstance(outcome, Scored) for outcome in outcomes)
    assert sum(outcome.value for outcome in outcomes if isinstance(outcome, Scored)) <= 1.0
