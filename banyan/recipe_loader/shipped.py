"""Recipes that come with Banyan: in the wheel inside this package, in the source tree beside it."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def folder() -> Path:
    """Return the folder of the recipes that come with Banyan."""
    packed = _PACKAGE / "recipes"
    return packed if packed.is_dir() else _PACKAGE.parent / "recipes"


def known() -> dict[str, Path]:
    """Return the recipes that have a name: those of a folder `recipes` here, then Banyan's own.

    One of the working folder hides one of Banyan's of the same name.
    """
    here = Path("recipes")
    places = [folder(), here] if here.is_dir() else [folder()]
    found = {file.stem: file for place in places for file in place.glob("*.yaml")}
    return dict(sorted(found.items()))
