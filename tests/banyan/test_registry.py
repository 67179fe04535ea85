"""Plugins that cannot be found: what was wrong, and the remedy."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from banyan import registry
from banyan.errors import InvalidInput
from banyan.recipe_loader import load


def test_a_misspelt_plugin_is_told_the_nearest_name() -> None:
    with pytest.raises(InvalidInput, match=r"'treepo-eagr'; did you mean treepo-eager\? known: "):
        registry.find("generate", "treepo-eagr")
    with pytest.raises(InvalidInput, match=r"'nothing-like-it'; known: "):
        registry.find("generate", "nothing-like-it")


def test_a_registered_name_that_leads_nowhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = importlib.metadata.EntryPoint("grpo", "services.learner.gone:Grpo", "banyan.optimise")
    monkeypatch.setattr(registry, "_entries", lambda axis: {"grpo": stale})
    with pytest.raises(InvalidInput, match=r"'services.learner.gone:Grpo'.*install its package"):
        registry.find("optimise", "grpo")


@pytest.mark.parametrize("before", ["", "import methods\n"])
def test_a_module_with_the_name_of_our_package_is_told_apart(tmp_path: Path, before: str) -> None:
    """A user's `methods.py`, which is ours by name; first in the search or imported before."""
    (tmp_path / "methods.py").write_text("def reward(completion, **row): return 1.0\n")
    code = f"""{before}
from banyan import registry
from banyan.errors import InvalidInput
from banyan.recipe_loader import load
for axis, name in (("filter", "methods:reward"), ("optimise", "grpo")):
    try:
        print(registry.find(axis, name).__module__)
    except InvalidInput as error:
        print(error)
"""
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    first, second = found.stdout.splitlines()
    hint = "'methods' is a package of Banyan: give a module of your own another name"
    if before:  # the user's module is there already: ours cannot be reached, which is said
        assert first == "methods" and hint in second
    else:
        assert hint in first and second == "methods.advantages.grpo"


def test_a_module_of_a_user_with_our_own_name_is_told_apart() -> None:
    with pytest.raises(InvalidInput, match="'banyan' is a package of Banyan: give a module"):
        registry.find("filter", "banyan:my_reward")


@pytest.mark.parametrize(
    ("find", "method", "declared"),
    [
        (registry.tree_policy, "plan", "need_scores = needs_score"),
        (registry.estimator, "estimate", "needs_scores"),
        (registry.curriculum, "allocate", "needs_room"),
    ],
)
def test_a_need_that_nothing_reads_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find: Any, method: str, declared: str
) -> None:
    module = f"class Plugin:\n    {declared} = True\n    def {method}(self): ...\n"
    (tmp_path / "needy.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "needy", raising=False)
    wrong = declared.rpartition(" ")[2]
    with pytest.raises(InvalidInput, match=f"declares {wrong}, which nothing reads; a .* may"):
        find("needy:Plugin", {})
    monkeypatch.delitem(sys.modules, "needy")


def test_the_needs_of_our_own_methods_are_read() -> None:
    for axis in registry.NEEDS:
        for name in registry.names(axis):
            plugin = registry.find(axis, name)
            declared = {attribute for attribute in dir(plugin) if attribute.startswith("needs_")}
            assert declared <= registry.NEEDS[axis], name


HOSTILE = """\
import sys
from dataclasses import dataclass

def failing(message):
    def fail(self, *arguments):
        raise RuntimeError(message)
    return fail

class Plans:
    def plan(self, view, room, rng): ...
    def estimate(self, group): ...

@dataclass
class Init(Plans):
    a: int = 1
    def __post_init__(self): raise RuntimeError("boom")

@dataclass
class Exits(Plans):
    a: int = 1
    def __post_init__(self): sys.exit(0)

class Property:
    plan = estimate = property(failing("boom"))

class Names(Plans):
    __dir__ = failing("boom")

class Gives(Plans):
    gives = needs = property(failing("boom"))

class Any_(Plans):
    def __getattr__(self, name): raise RuntimeError(f"boom {name}")

class Five(Plans):
    gives = needs = 5

class Letters(Plans):
    gives = needs = "steps"

class Yes(Plans):
    needs_entropy = "yes"
"""


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        ("Init", "plugin 'hostile:Init': RuntimeError: boom"),
        ("Exits", "plugin 'hostile:Exits': SystemExit: 0"),
        ("Property", "plugin hostile:Property: reading (plan|estimate) raised RuntimeError: boom"),
        ("Names", "plugin 'hostile:Names': its __dir__ raised RuntimeError: boom"),
        ("Gives", "plugin hostile:Gives: reading (gives|needs) raised RuntimeError: boom"),
        ("Any_", r"plugin hostile:Any_: reading \w+ raised RuntimeError: boom \w+"),
        ("Five", "plugin hostile:Five has (gives|needs) 5; it must be a tuple of names"),
        ("Letters", "plugin hostile:Letters has (gives|needs) 'steps'; it must be a tuple"),
        ("Yes", "plugin hostile:Yes has needs_entropy 'yes'; it must be true or false"),
    ],
)
@pytest.mark.parametrize("key", ["generate.policy", "optimise.advantage"])
def test_a_plugin_that_raises_outside_its_methods_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugin: str, message: str, key: str
) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "hostile", raising=False)
    recipe = "name: a\nmodel: none\ntask: {name: arithmetic}\nresources: {engine: scripted}\n"
    with pytest.raises(InvalidInput, match=message):
        load.parse(recipe, [f"{key}=hostile:{plugin}"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f() return 1\n", "SyntaxError"),
        ("raise SystemExit('gone')\n", "SystemExit: gone"),
        ("1 / 0\n", "ZeroDivision"),
        ("import math\nmath.nothing\n", "AttributeError: module 'math' has no"),
        (
            "import no_such_pkg.a\n",
            "No module named 'no_such_pkg'; 'broken_plugin' imports it: inst",
        ),
        ("from math import nothing\n", r"cannot import name 'nothing' from 'math' .*[)]$"),
    ],
)
def test_a_plugin_whose_module_breaks_is_named(tmp_path, monkeypatch, text, said) -> None:
    (tmp_path / "broken_plugin.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        InvalidInput, match=f"cannot import 'broken_plugin' of 'broken_plugin:f': {said}"
    ):
        registry.find("generate", "broken_plugin:f")
