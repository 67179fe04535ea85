"""The page of a recipe's keys is written from the definitions of its parts."""

from pathlib import Path

from banyan.recipe import reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipe.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.markdown(), "run `make recipe-page`"


def test_every_key_has_a_meaning() -> None:
    result = {key.key: key for key in reference.listed()}
    assert not [key.key for key in result.values() if not key.meaning or not key.takes]
    assert (
        result["generate.temperature"].takes == "number, ≥ 0.0, ≤ 10.0"
        and result["generate.temperature"].default == "1.0"
    )
    assert result["model"].default == "required"
    assert result["optimise.lora.targets"].takes == "list of text or all-linear"
    assert result["filter.0.name"].takes == "text"
    assert result["resources.refresh"].takes == "cut, drain"
