"""The name of the distribution: the index has another project's `banyan`."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from banyan.errors import InvalidInput
from banyan.runtime import distribution
from banyan.runtime.distribution import NAME, install, installed_version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOREIGN = re.compile(r"(?<!un)install[^\n`]{0,40}?['\" ]banyan(?![-\w./])|(?<![\w/-])banyan\[")
FOLDERS = ("banyan", "methods", "services", "bench", "docs", "k8s", "recipes", "tests")


def test_the_name_is_that_of_the_project_and_the_command_has_both() -> None:
    assert PROJECT["name"] == NAME != "banyan"
    assert PROJECT["scripts"]["banyan"] == PROJECT["scripts"][NAME]
    assert installed_version() == version(NAME) == PROJECT["version"]
    assert install("local", "loggers") == f"pip install '{NAME}[local,loggers]'"
    assert install() == f"pip install {NAME}"


def test_the_pattern_knows_the_other_projects_name() -> None:
    wrong = ("pip install 'banyan[gateway]'", "pip install banyan", "uv pip install -q banyan now")
    assert all(FOREIGN.search(text) for text in (*wrong, "install banyan[renderers]"))
    right = ("pip install 'banyan-rl[gateway]'", "`banyan` is installed", "install banyan.client")
    assert not any(FOREIGN.search(text) for text in right)


def test_nothing_says_to_install_the_other_project() -> None:
    files = [*ROOT.glob("*.md"), ROOT / "Dockerfile", ROOT / "Makefile"]
    for folder in FOLDERS:
        files += [f for kind in ("*.md", "*.py", "*.yaml") for f in (ROOT / folder).rglob(kind)]
    found = [
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in files
        if file != Path(__file__)
        for match in FOREIGN.finditer(file.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_every_named_extra_exists() -> None:
    own = [r for group in PROJECT["optional-dependencies"].values() for r in group if NAME in r]
    named = {extra for r in own for extra in re.findall(r"[\w-]+", r.partition("[")[2])}
    assert named and named <= set(PROJECT["optional-dependencies"])


def test_a_folder_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "NAME", "banyan-of-nowhere")
    with pytest.raises(InvalidInput, match=r"banyan-of-nowhere is not installed.* make install"):
        installed_version()
