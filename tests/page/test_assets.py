"""The files of the page, without a browser: what they name exists, and nothing is inline."""

import re
from pathlib import Path

import pytest

from tests.page.fake import ASSETS

SCRIPTS = sorted((ASSETS / "js").rglob("*.js"))
INDEX = (ASSETS / "index.html").read_text()
MOST_LINES = 350


def test_index_names_files_that_exist() -> None:
    named = re.findall(r'(?:href|src)="/assets/([^"]+)"', INDEX)
    assert "js/main.js" in named and len(named) == len(set(named))
    assert [name for name in named if not (ASSETS / name).is_file()] == []


def test_index_has_nothing_inline() -> None:
    assert re.findall(r"<style|\bstyle=|\bon\w+=|<script(?![^>]*src=)", INDEX) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(ASSETS).as_posix())
def test_a_script_imports_what_exists_and_makes_no_markup(script: Path) -> None:
    text = script.read_text()
    for name in re.findall(r"""(?:from|import\() ?"([^"]+)\"""", text):
        assert (script.parent / name).is_file(), name
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    )
    assert re.findall(forbidden, text) == []
    assert text.count("\n") <= MOST_LINES
    assert text.startswith("//"), "a script begins with what it is"


def test_vendored_libraries_have_their_licence() -> None:
    folders = [path for path in (ASSETS / "vendor").iterdir() if path.is_dir()]
    assert folders and all((folder / "LICENSE").is_file() for folder in folders)
