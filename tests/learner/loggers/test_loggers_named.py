"""Loggers by name in a recipe: refused, found, installed."""

import re
import tomllib

import pytest

from banyan import loggers, registry
from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from banyan.recipe_loader import load
from services.learner.loggers.jsonl import JsonLines
from tests.learner.logger_feeds import QUICKSTART, ROOT


def test_a_logger_that_is_not_installed_is_refused_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = loggers.importlib.util.find_spec
    monkeypatch.setattr(
        loggers.importlib.util, "find_spec", lambda name: None if name == "wandb" else whole(name)
    )
    load.parse(QUICKSTART, ["logging.loggers=[jsonl, tensorboard]"])
    with pytest.raises(
        InvalidInput,
        match=r"wandb needs wandb, which is not installed here: pip install wandb==0\.31\.0",
    ):
        load.parse(QUICKSTART, ["logging.loggers=[jsonl, wandb]"])


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            ["logging.loggers=[tensorbord]"],
            "there is no loggers plugin 'tensorbord'; did you mean tensorboard? known: jsonl, "
            "mlflow, tensorboard, wandb",
        ),
        (["logging.loggers=[jsonl, jsonl]"], "names jsonl twice"),
        (
            ["logging.settings={wandb: {project: x}}"],
            "settings are for wandb, which loggers does not name",
        ),
        (
            ["logging.loggers=[wandb]", "logging.settings={wandb: {mode: of}}"],
            "mode 'of' must be one of online",
        ),
        (
            ["logging.loggers=[jsonl]", "logging.settings={jsonl: {path: x}}"],
            "has no setting 'path'; it has folder",
        ),
        (
            ["logging.loggers=['banyan.draws:Draws']"],
            "banyan.draws:Draws': Draws.__init__() missing",
        ),
        (
            ["logging.loggers=['banyan.facts:Facts']"],
            "banyan.facts:Facts is no logger: it has no method `begin`",
        ),
    ],
)
def test_a_recipe_whose_loggers_are_wrong_is_refused(settings: list[str], why: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(why)):
        load.parse(QUICKSTART, settings)


def test_a_logger_of_the_users_own_is_found() -> None:
    name = "services.learner.loggers.jsonl:JsonLines"
    built = loggers.built(load.parse(QUICKSTART, [f"logging.loggers=['{name}']"]))
    assert isinstance(built[name], JsonLines)


def test_what_is_to_be_installed_is_what_the_extra_installs() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]["loggers"]
    classes = [registry.find("loggers", name) for name in registry.names("loggers")]
    assert {cls.PACKAGE[1] for cls in classes if hasattr(cls, "PACKAGE")} <= set(extra)


def test_loggers_are_no_part_of_a_recipe_without_them() -> None:
    assert (
        Recipe.model_fields["logging"].default == Recipe.model_fields["logging"].default.__class__()
    )
    assert "logging" in Recipe.LATER
