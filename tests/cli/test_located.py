"""Files of a recipe lie beside it, or else in the working folder, and are stored as absolute
paths."""

from pathlib import Path

import pytest

from banyan.cli.train.file_locations import located
from banyan.errors import InvalidInput
from banyan.recipe import Recipe
from services.chassis import models


def recipe(**changes: object) -> Recipe:
    return Recipe.model_validate(
        {"name": "r", "model": "org/name", "task": {"name": "arithmetic"}, **changes}
    )


def test_a_model_beside_the_recipe_is_stored_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, file = tmp_path / "here", tmp_path / "recipes" / "r.yaml"
    (here / "only-here").mkdir(parents=True)
    (file.parent / "m").mkdir(parents=True)
    monkeypatch.chdir(here)
    assert located(recipe(model="m"), file).model == str(file.parent / "m")
    assert located(recipe(model="./m"), Path("../recipes/r.yaml")).model == str(file.parent / "m")
    assert located(recipe(model="only-here"), file).model == str(here / "only-here")
    (here / "m").mkdir()
    assert located(recipe(model="m"), file).model == str(file.parent / "m"), (
        "beside the recipe comes first"
    )
    assert located(recipe(model=str(here / "m")), file).model == str(here / "m")


def test_a_users_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").mkdir()
    assert located(recipe(model="~/m"), Path("r.yaml")).model == str(tmp_path / "m")


@pytest.mark.parametrize("name", ["org/name", "gone", "a-file"])
def test_what_is_no_folder_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").write_text("")
    assert located(recipe(model=name), Path("r.yaml")).model == name


def test_the_quick_starts_model_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / models.SMOLLM2).mkdir()
    assert located(recipe(model=models.SMOLLM2), Path("r.yaml")).model == models.SMOLLM2


def test_a_task_file_is_in_one_of_both_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("{}")
    task = {"name": "file", "path": "rows.jsonl", "reward": "m:f"}
    assert located(recipe(task=task), tmp_path / "far" / "r.yaml").task.path == str(
        tmp_path / "rows.jsonl"
    )
    with pytest.raises(InvalidInput, match=r"r\.yaml: task\.path: there is no file 'gone'"):
        located(recipe(task={**task, "path": "gone"}), Path("r.yaml"))
    with pytest.raises(InvalidInput, match="is a folder"):
        located(recipe(task={**task, "path": str(tmp_path)}), Path("r.yaml"))


def test_programs_and_files_of_servers_are_found_beside_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "recipes"
    (folder / "data").mkdir(parents=True)
    (folder / "server.py").write_text("")
    command = ["python3", "server.py", "--port", "", "far.py"]
    server = {"command": command, "files": ["data"], "tools": ["order"]}
    other = {"url": "https://example.org/mcp", "tools": ["order"]}
    settings = {"servers": [server, other]}
    part = {"name": "tools", "settings": settings, "external": ["order"], "network": True}
    found = located(recipe(environment=part), folder / "r.yaml").environment
    assert found is not None
    first, second = found.settings["servers"]
    assert first["command"][0].startswith("/") and first["command"][0].endswith("/python3")
    assert first["command"][1:] == [str(folder / "server.py"), "--port", "", "far.py"]
    assert first["files"] == [str(folder / "data")] and second == other
    gone = {"servers": [{**server, "files": ["gone"]}]}
    with pytest.raises(InvalidInput, match=r"servers\.files: there is no 'gone'"):
        located(recipe(environment={**part, "settings": gone}), folder / "r.yaml")
    with pytest.raises(ValueError, match="has a url: set network: true"):
        recipe(environment={**part, "network": False})
