"""`banyan recipes`: what comes with Banyan, by kind, beside the recipes of the working folder."""

import json
from pathlib import Path

import pytest

from banyan.recipe_loader import shipped
from banyan.recipe_loader.kinds import KINDS
from tests.cli.command import ROOT, banyan
from tests.cli.refusals import ARITHMETIC, refused


def listed(*arguments: str, cwd: Path = ROOT) -> dict[str, dict[str, str]]:
    rows = json.loads(banyan("recipes", "ls", *arguments, "--json", cwd=cwd).stdout)
    return {row["name"]: row for row in rows}


def test_every_recipe_is_of_one_kind() -> None:
    kinds = {name: row["kind"] for name, row in listed().items()}
    assert set(kinds.values()) == set(KINDS)
    some = {"treepo": "trees", "calculator": "tools", "programs": "tasks", "replay": "prompts"}
    assert some.items() <= kinds.items() and kinds["cispo"] == "updates"
    assert sum(len(listed(kind)) for kind in KINDS) == len(kinds) == len(shipped.known())


def test_without_a_kind_names_are_listed_and_with_one_descriptions() -> None:
    short = banyan("recipes", "ls").stdout
    assert all(name in short for name in listed()) and "learns to add three" not in short
    assert "learns to add three numbers" in banyan("recipes", "ls", "trees").stdout
    refused(banyan("recipes", "ls", "leaves"), "no kind 'leaves' of recipes; known: trees, tasks")


def test_recipes_here_stand_beside_those_of_banyan_and_hide_them(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    text = ARITHMETIC.read_text()
    for name in ("own", "treepo"):
        (tmp_path / "recipes" / f"{name}.yaml").write_text(text)
    rows = listed(cwd=tmp_path)
    assert rows["own"]["file"] == "recipes/own.yaml"
    assert rows["treepo"]["file"] == "recipes/treepo.yaml"
    assert rows["quickstart"]["file"] == str(ROOT / "recipes" / "quickstart.yaml")


def test_recipes_of_the_wheel_lie_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "banyan")
    assert shipped.folder() == tmp_path / "recipes"
    (tmp_path / "banyan" / "recipes").mkdir(parents=True)
    assert shipped.folder() == tmp_path / "banyan" / "recipes"
