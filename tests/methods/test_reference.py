"""The page of methods is written from their docstrings."""

from pathlib import Path

from methods import reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "methods.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.markdown(), "run `make methods-page`"


def test_heads_begin_with_the_name_and_have_a_summary() -> None:
    assert [method.name for method in reference.methods() if not method.summary] == []


def test_estimators_and_tree_policies_name_their_paper() -> None:
    unnamed = [
        method.name
        for method in reference.methods()
        if method.axis in ("generate", "optimise") and "Paper" not in method.fields
    ]
    assert unnamed == []
