"""Each service imports with only its own extra: packages of other extras are hidden from it."""

import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SERVICES = ("gateway", "treestore", "rollout", "verifier", "learner")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

PROBE = """
import importlib, pkgutil, sys
hidden = set({hidden!r})
class Hide:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in hidden else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Hide(finder) for finder in sys.meta_path]
package = importlib.import_module("services.{service}")
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not module.name.endswith(".env"):
        importlib.import_module(module.name)
print("torch" in sys.modules)
"""


def distributions(extras: list[str]) -> set[str]:
    wanted = [r for extra in extras for r in PROJECT["optional-dependencies"][extra]]
    names = {canonicalize_name(Requirement(r).name) for r in wanted}
    return names - {PROJECT["name"], "pip"}  # extras that are made of others


def hidden_modules(service: str) -> list[str]:
    others = distributions(list(PROJECT["optional-dependencies"])) - distributions([service])
    others -= {canonicalize_name(Requirement(r).name) for r in PROJECT["dependencies"]}
    modules = [
        m
        for m, names in packages_distributions().items()
        if {canonicalize_name(n) for n in names} & others
    ]
    return sorted(set(modules) - {"google"})


@pytest.mark.slow
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_imports_with_only_its_own_extra(service: str) -> None:
    probe = PROBE.format(hidden=hidden_modules(service), service=service)
    result = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr[-2000:]


def test_banyan_is_light() -> None:
    code = (
        "import sys, banyan.client, banyan.recipe_loader.load, banyan.view, banyan.cli.main; "
        "print('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert result.stdout.strip() == "False", result.stderr


def test_hidden_modules_are_found() -> None:
    assert "torch" in hidden_modules("gateway") and "sqlalchemy" in hidden_modules("learner")
