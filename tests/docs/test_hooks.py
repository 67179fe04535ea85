"""The navigation of the site: folders that are listed by themselves, pages that are not written."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from docs.site import hooks


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    for name in ("README.md", "002-b.md", "001-a.md"):
        (tmp_path / "adr").mkdir(exist_ok=True)
        (tmp_path / "adr" / name).touch()
    return tmp_path


def completed(nav: list[Any], docs: Path) -> list[Any]:
    config: Any = SimpleNamespace(nav=[{"Top": nav}], docs_dir=str(docs))
    found: Any = hooks.on_config(config)
    (top,) = found.nav
    return list(top["Top"])


def test_decisions_are_listed_in_their_order_behind_the_readme(docs: Path) -> None:
    listed = completed(["a.md", {"Decisions": ["adr/"]}], docs)
    assert listed == [
        "a.md",
        {"Decisions": ["adr/README.md", "adr/001-a.md", "adr/002-b.md"]},
    ]
    assert completed([{"Decisions": "adr/"}], docs) == [listed[1]]


def test_a_page_that_is_not_written_yet_has_no_place(docs: Path) -> None:
    assert completed(["a.md", "clients.md"], docs) == ["a.md"]
    (docs / "clients.md").touch()
    assert completed(["a.md", "clients.md"], docs) == ["a.md", "clients.md"]
    assert completed(["notebook.md"], docs) == []
    (docs / "notebook.ipynb").touch()
    assert completed(["notebook.md"], docs) == ["notebook.md"]


def test_another_page_that_is_missing_stays_for_the_builder_to_name(docs: Path) -> None:
    assert completed(["gone.md"], docs) == ["gone.md"]
