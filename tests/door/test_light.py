"""`import banyan` is light: names are loaded when they are used."""

import subprocess
import sys

import pytest

import banyan

LOADED = """
import sys, banyan
heavy = {"grpc", "numpy", "pydantic", "rich", "torch", "pandas", "typer"}
print(sorted(heavy & sys.modules.keys()))
banyan.open, banyan.train
print("torch" in sys.modules)
"""


def test_the_import_loads_nothing_heavy_and_the_door_no_torch() -> None:
    found = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout.split("\n")[:2] == ["[]", "False"]


@pytest.mark.parametrize("name", banyan.__all__)
def test_each_name_is_there_and_listed(name: str) -> None:
    assert getattr(banyan, name) is not None and name in dir(banyan)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'banyan' has no attribute 'nothing'"):
        _ = banyan.nothing


def test_types_that_checkers_see_are_those_that_are_loaded() -> None:
    assert set(banyan.__all__) == set(banyan._PLACES)
