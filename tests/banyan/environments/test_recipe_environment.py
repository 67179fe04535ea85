"""Recipes with an environment: what goes together, and what is refused by name."""

import json

import pytest

from banyan import registry
from banyan.environments.hosting import Hosting
from banyan.errors import InvalidInput
from banyan.recipe_loader.environment_spec import environment_of
from banyan.recipe_loader.load import parse, resolve
from banyan.wire.generate_spec import EnvironmentSpec, GenerateSpec
from methods.environment.calculator import Calculator

MINIMAL = "name: x\nmodel: m/m\ntask: {name: arithmetic}\n"
CALCULATOR = MINIMAL + "environment: {name: calculator, turns: 3, episode_s: 1.5}\n"


def test_an_environment_reaches_the_trees_spec() -> None:
    recipe = parse(CALCULATOR)
    wanted = EnvironmentSpec(name="calculator", turns=3, episode_s=1.5)
    assert environment_of(recipe) == wanted and environment_of(parse(MINIMAL)) is None
    spec = GenerateSpec(name="iid", max_new_tokens=4, environment=wanted)
    assert GenerateSpec.from_json(spec.to_json()) == spec
    assert "environment" not in json.loads(GenerateSpec(name="iid", max_new_tokens=4).to_json())


def test_what_tools_may_do_outside_reaches_the_trees_spec() -> None:
    part = "{name: tools, settings: {functions: [shop:order]}, external: [order], network: true,"
    recipe = parse(f"{MINIMAL}environment: {part} secrets: [KEY]}}\n")
    spec = environment_of(recipe)
    assert spec is not None and spec.hosting is not None
    assert (spec.hosting.external, spec.hosting.secrets) == (("order",), ("KEY",))
    assert spec.hosting.network
    generate = GenerateSpec(name="iid", max_new_tokens=4, environment=spec)
    assert GenerateSpec.from_json(generate.to_json()) == generate


def test_a_spec_of_before_there_were_external_tools_allows_none() -> None:
    hosting = Hosting.of({"end": "x", "readable": [], "withheld": []})
    assert (hosting.external, hosting.network, hosting.secrets) == ((), False, ())


def test_a_recipe_survives_its_json() -> None:
    assert resolve(json.loads(parse(CALCULATOR).model_dump_json())) == parse(CALCULATOR)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "environment: {name: calculater}",
            "there is no environment 'calculater'; known: calculator",
        ),
        ("environment: {name: calculator, settings: {digits: -1}}", "digits must be a whole"),
        (
            "environment: {name: 'os:system'}",
            "end: name the mark with which",
        ),
        ("environment: {name: calculator, turns: 0}", "environment.turns"),
        (
            "environment: {name: calculator}\ngenerate: {policy: treepo}",
            "generate.policy treepo does not let paths act in an environment; use turns",
        ),
        (
            "environment: {name: calculator, external: [send]}",
            "external is for environment tools; what calculator does must be possible to repeat",
        ),
        ("environment: {name: 'a:B', end: x, network: true}", "network is for environment tools"),
        ("environment: {name: doors.Door, end: '?'}", "there is no environment 'doors.Door'"),
        ("environment: {name: tool, external: [send]}", "there is no environment 'tool'"),
        ("environment: {name: sql, end: '?'}", "that of sql is one of its settings"),
        ("environment: {name: sql, secrets: [KEY]}", "secrets is for environment tools"),
        ("environment: {name: tools, secrets: [key]}", "environment.secrets.0"),
    ],
)
def test_what_does_not_go_together_is_refused(more: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse(MINIMAL + more + "\n")


def test_deterministic_runs_take_environments_that_say_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = "environment: {name: 'doors:Door', end: '?'}\n"  # asked where it is loaded
    for text in (CALCULATOR, MINIMAL + own):
        wanted = environment_of(parse(text + "deterministic: true\n"))
        assert wanted is not None and wanted.deterministic
        assert wanted.hosting is None or wanted.hosting.deterministic
        spec = GenerateSpec(name="iid", max_new_tokens=4, environment=wanted)
        assert GenerateSpec.from_json(spec.to_json()) == spec
    monkeypatch.setattr(Calculator, "deterministic", False)
    assert parse(CALCULATOR)
    with pytest.raises(InvalidInput, match="environment calculator does not say that it is det"):
        parse(CALCULATOR + "deterministic: true\n")


@pytest.mark.parametrize(
    "text",
    ['{"name": 1}', '{"name": "c", "settings": [], "turns": 1, "answer_chars": 9}', "[]", "null"],
)
def test_an_environment_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="generate_json is unusable"):
        GenerateSpec.from_json(f'{{"name": "iid", "max_new_tokens": 4, "environment": {text}}}')


def test_a_plugin_that_takes_the_name_of_ours_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Calculator:
        """Another one."""

        def reset(self, row: object, seed: int) -> None:
            raise AssertionError("it ran")

    monkeypatch.setattr(registry, "build", lambda axis, *more: Calculator())
    with pytest.raises(InvalidInput, match=r"is tests\.banyan.*, not Banyan's own"):
        registry.environment("calculator", {})
