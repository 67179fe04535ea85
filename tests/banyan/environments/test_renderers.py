"""The choice of a renderer: by exact name of the model, or as a recipe says."""

import json
import tomllib
from pathlib import Path

import pytest

from banyan.environments.renderers import MODELS, PACKAGE, SETTINGS, VERSIONS, choose
from banyan.errors import InvalidInput
from banyan.recipe_loader.environment_spec import environment_of
from banyan.recipe_loader.load import parse
from banyan.wire.generate_spec import EnvironmentSpec, GenerateSpec

RECIPE = "name: x\nmodel: Qwen/Qwen3-0.6B\ntask: {name: arithmetic}\nenvironment:\n"


def test_names_versions_and_settings_are_the_packages() -> None:
    import renderers
    from renderers.base import MODEL_RENDERER_MAP

    theirs = {model: name for model, name in MODEL_RENDERER_MAP.items() if name in VERSIONS}
    ours = {model: name for model, name in MODELS.items() if name != "chatml"}
    assert ours == theirs
    assert renderers.__version__ == PACKAGE
    for name, taken in SETTINGS.items():
        known = type(renderers.config_from_name(name)).model_fields
        assert {key: known[key].annotation for key in taken} == dict(taken)
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    pins = project["project"]["optional-dependencies"]["renderers"]
    assert f"renderers=={PACKAGE}" in pins


def test_the_choice_is_frozen_in_the_spec_of_a_tree() -> None:
    asked = RECIPE + "  name: calculator\n  renderer_settings: {enable_thinking: false}\n"
    made = environment_of(parse(asked))
    assert made is not None
    spec = GenerateSpec(name="iid", max_new_tokens=4, environment=made)
    assert json.loads(spec.to_json())["environment"]["renderer"] == {
        "name": "qwen3",
        "version": "0.1.12",
        "settings": {"enable_thinking": False},
    }
    assert GenerateSpec.from_json(spec.to_json()) == spec


def test_a_spec_from_before_renderers_had_names_has_chatml() -> None:
    spec = EnvironmentSpec.of(
        {"name": "calculator", "settings": {}, "turns": 1, "answer_chars": 99}
    )
    assert (spec.renderer.name, spec.renderer.version) == ("chatml", "1")


def test_other_models_have_chatml_or_what_the_recipe_names() -> None:
    assert choose("./Qwen3-0.6B", None, {}).name == "chatml"
    assert choose("./Qwen3-0.6B", "qwen3", {}).name == "qwen3"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("renderer: glm-5", "environment.renderer: there is no renderer 'glm-5'; known: chatml"),
        ("renderer_settings: {thinking: true}", "has no setting 'thinking'; it takes: enable_th"),
        ("renderer_settings: {enable_thinking: 1}", "must be true or false, got 1"),
        ("renderer: llama-3\n  renderer_settings: {date_string: 3}", "must be a text, got 3"),
        ("renderer: chatml\n  renderer_settings: {a: 3}", "has no setting 'a'; it takes: none"),
    ],
)
def test_what_no_renderer_takes_is_refused(more: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse(f"{RECIPE}  name: calculator\n  {more}\n")
