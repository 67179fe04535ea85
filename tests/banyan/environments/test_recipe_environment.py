"""Recipes with an environment: what goes together, and what is refused by name."""

import json

import pytest

from banyan import registry
from banyan.errors import InvalidInput
from banyan.recipe_loader.load import parse, resolve
from banyan.wire.generate_spec import EnvironmentSpec, GenerateSpec
from services.gateway.runs.opening import environment_of

MINIMAL = "name: x\nmodel: m/m\ntask: {name: arithmetic}\n"
CALCULATOR = MINIMAL + "environment: {name: calculator, turns: 3}\n"


def test_an_environment_reaches_the_trees_spec() -> None:
    recipe = parse(CALCULATOR)
    wanted = EnvironmentSpec(name="calculator", turns=3)
    assert environment_of(recipe) == wanted and environment_of(parse(MINIMAL)) is None
    spec = GenerateSpec(name="iid", max_new_tokens=4, environment=wanted)
    assert GenerateSpec.from_json(spec.to_json()) == spec
    assert "environment" not in json.loads(GenerateSpec(name="iid", max_new_tokens=4).to_json())


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
        ("environment: {name: 'os:system'}", "there is no environment 'os:system'"),
        ("environment: {name: calculator, turns: 0}", "environment.turns"),
        (
            "environment: {name: calculator}\ngenerate: {policy: treepo}",
            "generate.policy treepo does not let paths act in an environment; use turns",
        ),
        (
            "environment: {name: calculator}\nresources: {engine: vllm}",
            "environment needs resources.engine torch",
        ),
        (
            "environment: {name: calculator}\ndeterministic: true",
            "deterministic: true takes no environment",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(more: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse(MINIMAL + more + "\n")


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
