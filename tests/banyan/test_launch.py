"""Programs of this package start whatever lies in the working folder, and find a user's code there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from banyan.runtime import launch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder that has packages of our names."""
    for name in ("services", "methods", "banyan"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    return tmp_path


def test_a_users_package_of_our_name_is_not_ours(folder: Path) -> None:
    environment = {
        **os.environ,
        launch.FOLDERS: str(folder),
        "BANYAN_DATABASE": "oracle://somewhere/else",
    }
    ended = subprocess.run(
        [*launch.OURS, "services.treestore"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
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


def test_a_users_methods_are_not_ours(folder: Path) -> None:
    code = (
        "import os, sys; from banyan import registry; from banyan.runtime.launch import "
        "find_users_code;find_users_code(); assert sys.path[0] == "
        "os.environ['BANYAN_PATH'];print(registry.find('generate', 'iid').__module__, "
        "registry.find('filter', 'number').__module__)"
    )
    environment = {**os.environ, launch.FOLDERS: str(folder)}
    command = [sys.executable, "-P", "-c", code]
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout.split() == ["methods.generate.iid", "methods.filter.number"], ended.stderr
