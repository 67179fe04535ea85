"""The page of methods is written from their docstrings."""

from pathlib import Path

from banyan import registry
from methods import reference, settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "methods.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.markdown(), "run `make methods-page`"


def test_heads_begin_with_the_name_and_have_a_summary() -> None:
    assert [method.name for method in reference.methods() if not method.summary] == []


def test_every_setting_has_a_meaning() -> None:
    known = [method for method in reference.methods() if method.axis != "optimise"]
    told = {
        (method.name, setting.name): setting
        for method in known
        for setting in settings.of(registry.find(method.axis, method.name))
    }
    assert [names for names, setting in told.items() if not setting.meaning] == []
    assert told["length", "most"].needed and told["number", "take"].default == '"only"'


def test_estimators_and_tree_policies_name_their_paper() -> None:
    unnamed = [
        method.name
        for method in reference.methods()
        if method.axis in ("generate", "optimise") and "Paper" not in method.fields
    ]
    assert unnamed == []
