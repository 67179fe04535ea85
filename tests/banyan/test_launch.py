"""Programs of this package start whatever lies in the working folder, and find a user's code there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from banyan.runtime import launch

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder that has packages of our names."""
    for name in ("services", "methods", "banyan"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    return tmp_path


def test_a_users_package_of_our_name_is_not_ours(folder: Path) -> None:
    environment = {**os.environ, launch.FOLDERS: str(folder), "BANYAN_DATABASE": "oracle://somewhere/else"}
    ended = subprocess.run(
        [*launch.OURS, "services.treestore"], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert "is neither sqlite nor postgresql" in ended.stderr


def test_users_folders_are_searched_first_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/known", "/last"])
    monkeypatch.setenv(launch.FOLDERS, os.pathsep.join(("/one", "/known", "", "/two")))
    launch.find_users_code()
    assert sys.path == ["/one", "/two", "/known", "/last"]
    monkeypatch.delenv(launch.FOLDERS)
    launch.find_users_code()
    assert sys.path == ["/one", "/two", "/known", "/last"]


@pytest.mark.parametrize("plain", [True, False])
def test_a_users_methods_are_not_ours(folder: Path, plain: bool) -> None:
    """Nor is a folder of that name that says nothing itself: Python joins such folders, wherever they lie."""
    for name in () if plain else ("generate", "filter"):
        (folder / "methods" / "__init__.py").unlink(missing_ok=True)
        (folder / "methods" / name).mkdir()
        (folder / "methods" / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    code = (
        "import os, sys; from banyan import registry; from banyan.runtime.launch import find_users_code;"
        "find_users_code(); assert sys.path[0] == os.environ['BANYAN_PATH'];"
        "print(registry.find('generate', 'iid').__module__, registry.find('filter', 'number').__module__)"
    )
    environment = {**os.environ, launch.FOLDERS: str(folder)}
    command = [sys.executable, "-P", "-c", code]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["methods.generate.iid", "methods.filter.number"], ended.stderr


@pytest.mark.parametrize("command", [["-P", "-c", "from banyan.cli.main import main; main()"], ["-m", "banyan.cli"]])
def test_commands_take_no_users_package_for_ours(folder: Path, command: list[str]) -> None:
    """Wherever it is looked for first: in PYTHONPATH, or in the working folder by `python -m`."""
    shutil.rmtree(folder / "banyan")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    called = [sys.executable, *command, "simulate", str(RECIPE)]
    ended = subprocess.run(called, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_services_take_no_users_package_for_ours_that_lies_in_pythonpath(folder: Path) -> None:
    shutil.rmtree(folder / "banyan")
    environment = {**os.environ, "PYTHONPATH": str(folder), "BANYAN_DATABASE": "oracle://somewhere/else"}
    ended = subprocess.run(
        [*launch.OURS, "services.treestore"], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert "is neither sqlite nor postgresql" in ended.stderr
