"""Recipes: defaults, overrides, and one clear message with the line for everything that is wrong."""

from pathlib import Path

import pytest

from banyan.errors import InvalidInput
from banyan.recipe_file import load, parse

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
MINIMAL = "name: x\nmodel: m/m\ntask: {name: arithmetic}\n"


def test_every_recipe_that_comes_with_banyan_loads() -> None:
    for path in sorted(QUICKSTART.parent.glob("*.yaml")):
        assert load(path).name == path.stem


def test_set_goes_over_the_file() -> None:
    recipe = load(QUICKSTART, ["budget.steps=3", "generate.settings.width=2", "deterministic=true"])
    assert (recipe.budget.steps, recipe.generate.settings, recipe.deterministic) == (3, {"width": 2}, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINIMAL + "optimize: {}\n", r"line 4: optimize: unknown key"),
        (MINIMAL + "budget:\n  steps: many\n", r"line 5: budget.steps: .*integer.*'many'"),
        (MINIMAL + "budget: {steps: 0}\n", r"line 4: budget.steps: .*greater.*\(got 0\)"),
        ("name: x\nmodel: m\n", r"task: Field required"),
        (MINIMAL + "generate: {policy: nope}\n", r"no generate plugin 'nope'; known: iid, treepo"),
        (MINIMAL + "generate: {settings: {wide: 3}}\n", r"'iid' has no setting 'wide'; it has"),
        (MINIMAL + "generate: {top_p: 0.5}\n", r"allow_truncated_sampling"),
        (MINIMAL + "generate: {temperature: 0}\n", r"temperature 0"),
        (MINIMAL + "deterministic: true\ncontrol: {max_staleness: 1}\n", r"max_staleness: 0"),
        (MINIMAL.replace("arithmetic", "file"), r"line 3: task: task file needs `path` and `reward`"),
        ("a: [", r"not YAML"),
        ("- a\n", r"must be a YAML mapping, got list"),
    ],
)
def test_bad_recipes_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse(text, name="r.yaml")


@pytest.mark.parametrize("override", ["budget.steps", "=3", "name.x=1"])
def test_bad_overrides_are_refused(override: str) -> None:
    with pytest.raises(InvalidInput, match="--set"):
        load(QUICKSTART, [override])


def test_a_missing_file_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read recipe .*none.yaml: No such file"):
        load(tmp_path / "none.yaml")
