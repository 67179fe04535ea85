"""A simulation with an environment: pure ones answer, those that run code are refused."""

from typing import Any

import pytest

from banyan.errors import InvalidInput
from banyan.recipe_loader.load import resolve
from services.rollout.simulation.simulate import simulate
from tests.rollout.growth.test_actions import CHAIN


def recipe(environment: dict[str, Any]) -> Any:
    return resolve(
        {
            "name": "acting",
            "model": "none",
            "task": {"name": "arithmetic"},
            "generate": {
                "policy": "turns",
                "settings": {"starts": 2, "branches": 3, "depth": 1},
                "max_new_tokens": 24,
            },
            "environment": environment,
            "resources": {"engine": "scripted", "engine_settings": {"chain": CHAIN}},
        }
    )


def test_paths_of_a_simulation_are_answered() -> None:
    found = simulate(recipe({"name": "calculator", "settings": {"begin": "=", "end": "?"}}))
    assert found["leaves"] == 6 and found["answers"] >= 2 and found["forks"] >= 2


def test_an_environment_that_runs_code_is_refused() -> None:
    with pytest.raises(InvalidInput, match="environment python runs code, for which a simulation"):
        simulate(recipe({"name": "python"}))


def test_nothing_outside_is_changed_by_a_simulation() -> None:
    """Its functions are not even imported."""
    settings = {"functions": ["no_such_module:order"]}
    part = {"name": "tools", "settings": settings, "external": ["order"]}
    with pytest.raises(InvalidInput, match="environment tools runs code, for which a simulation"):
        simulate(recipe(part))
