"""The page of a recipe's keys is what the parts say of themselves."""

from pathlib import Path

from banyan.recipe import reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipe.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.markdown(), "run `make recipe-page`"


def test_every_key_has_a_meaning() -> None:
    found = {key.key: key for key in reference.listed()}
    assert not [key.key for key in found.values() if not key.meaning or not key.takes]
    assert (
        found["generate.temperature"].takes == "number, ≥ 0.0, ≤ 10.0"
        and found["generate.temperature"].default == "1.0"
    )
    assert found["model"].default == "required"
    assert found["optimise.lora.targets"].takes == "list of text or all-linear"
    assert found["filter.0.name"].takes == "text"
    assert found["resources.refresh"].takes == "cut, drain"
