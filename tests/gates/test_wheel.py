"""The wheel: what it holds, and that a command out of it takes nothing from the source tree."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from banyan.runtime.distribution import NAME

ROOT = Path(__file__).parents[2]
PACKAGES = ("banyan", "methods", "services")
PROBE = """
import json, banyan, methods, services
from importlib.metadata import version
from banyan.recipe_loader import shipped
print(json.dumps([banyan.__file__, methods.__file__, services.__file__, str(shipped.folder())]))
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel, built from the source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def unpacked(wheel: Path) -> Path:
    """Return a folder as pip would fill it."""
    folder = wheel.parent / "packages"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    return folder


def command(unpacked: Path, cwd: Path, *arguments: str) -> str:
    """Return the output of Python with the unpacked wheel before all else, in another folder."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("BANYAN_")}
    env |= {"PYTHONPATH": str(unpacked), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-P", *arguments],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_holds_every_file_of_its_packages_and_the_recipes(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES, "recipes"], cwd=ROOT, capture_output=True, text=True
    ).stdout.splitlines()
    if not listed:
        pytest.skip("the source tree is no clone, so its files cannot be listed")
    wanted = {
        f"banyan/{name}" if name.startswith("recipes/") else name
        for name in listed
        if (ROOT / name).exists()
    }
    held = set(zipfile.ZipFile(wheel).namelist())
    assert wanted - held == set()
    other = {name for name in held - wanted if ".dist-info/" not in name}
    gone = [n for n in other if not (ROOT / n.removeprefix("banyan/")).exists()]
    assert [name for name in gone if not (ROOT / name).exists()] == []
    assert not [n for n in held if n.startswith(("tests/", "bench/", "docs/")) or ".pyc" in n]


def test_it_is_named_and_has_its_commands_and_licence(wheel: Path) -> None:
    packed = zipfile.ZipFile(wheel)
    about = f"{wheel.name.split('-py3')[0]}.dist-info"
    assert wheel.name.startswith(f"{NAME.replace('-', '_')}-")
    commands = packed.read(f"{about}/entry_points.txt").decode()
    assert "banyan = banyan.cli.main:main" in commands and f"{NAME} = banyan" in commands
    assert f"{about}/licenses/LICENSE" in packed.namelist()


def test_recipes_are_those_of_the_wheel(unpacked: Path, tmp_path: Path) -> None:
    places = json.loads(command(unpacked, tmp_path, "-c", PROBE))
    assert all(place.startswith(f"{unpacked}{os.sep}") for place in places), places
    listed = json.loads(command(unpacked, tmp_path, "-m", "banyan.cli", "recipes", "ls", "--json"))
    of_source = {file.stem for file in (ROOT / "recipes").glob("*.yaml")}
    assert {row["name"] for row in listed} == of_source
    assert {Path(row["file"]).parent for row in listed} == {unpacked / "banyan" / "recipes"}


def test_data_of_recipes_is_that_of_the_wheel(unpacked: Path, tmp_path: Path) -> None:
    words = ("-m", "banyan.cli", "train", "extraction", "--dry-run", "--json")
    recipe = json.loads(command(unpacked, tmp_path, *words))
    rows = unpacked / "banyan" / "recipes" / "data" / "extraction.jsonl"
    assert Path(recipe["task"]["path"]) == rows and rows.is_file()
    assert list(tmp_path.iterdir()) == []
