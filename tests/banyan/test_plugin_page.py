"""docs/plugins.md: its examples run, and it names every estimator."""

import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from banyan import plugins, registry
from banyan.recipe_loader.load import resolve
from services.rollout.simulation.simulate import simulate

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, scorer, estimator = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "page_policy.py").write_text(policy)
    (tmp_path / "page_scorer.py").write_text(scorer)
    (tmp_path / "page_estimator.py").write_text(estimator)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_its_tree_policy_grows_trees(examples: None) -> None:
    recipe = resolve(
        {
            "name": "page",
            "model": "none",
            "task": {"name": "arithmetic"},
            "generate": {
                "policy": "page_policy:Samples",
                "settings": {"width": 8},
                "max_new_tokens": 6,
            },
            "resources": {"engine": "scripted"},
        }
    )
    result = simulate(recipe)
    assert (result["leaves"], result["sampled_tokens"], result["saved"]) == (8, 48, 0.0)


def test_its_scorer_scores(examples: None) -> None:
    scorer = registry.build("filter", "page_scorer:Contains", {})
    exact = registry.build("filter", "page_scorer:Contains", {"any_case": False})
    scores = [s.score("It is PARIS.", {"answer": "Paris"}).value for s in (scorer, exact)]
    assert scores == [1.0, 0.0]


def test_its_estimator_gives_advantages(examples: None) -> None:
    trees = [
        SimpleNamespace(rewards_L=np.array([1.0, 0.0, np.nan])),
        SimpleNamespace(rewards_L=np.array([1.0, 0.0])),
    ]
    result = registry.build("optimise", "page_estimator:Centred", {}).estimate(
        SimpleNamespace(trees=trees)
    )
    assert [x.tolist()[:2] for x in result.leaf_G_L] == [[0.5, -0.5], [0.5, -0.5]]


def test_names_of_the_package_are_imported_when_they_are_used() -> None:
    assert set(plugins._MODULES) == set(plugins.__all__) <= set(dir(plugins))
    for name, module in plugins._MODULES.items():
        assert getattr(plugins, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match=r"'banyan.plugins' has no attribute 'Nothing'"):
        _ = plugins.Nothing


def test_every_estimator_is_named() -> None:
    output = PAGE.read_text()
    assert [name for name in registry.names("optimise") if f"| `{name}` |" not in output] == []
