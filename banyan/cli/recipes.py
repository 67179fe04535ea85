"""`banyan recipes`: the recipes that come with Banyan, resolved with their defaults."""

import difflib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from banyan.cli.options import Json
from banyan.cli.render.console import emit, emit_yaml
from banyan.cli.train import search_path
from banyan.errors import InvalidInput
from banyan.recipe import Recipe, reference
from banyan.recipe_loader.load import load

app = typer.Typer(help="Recipes.", no_args_is_help=True)


def find(name: str) -> Path:
    """Return a recipe's file, by path or by name from the folder of recipes."""
    path = Path(name)
    if path.exists():
        return path
    known = {p.stem: p for p in folder().glob("*.yaml")}
    if path.suffix in (".yaml", ".yml"):
        if path.stem in known:
            raise InvalidInput(
                f"there is no file {name!r}; did you mean {path.stem}, which is {known[path.stem]}?"
            )
        return path
    if name not in known:
        near = "".join(
            f"; did you mean {other}?"
            for other in difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        )
        every = ", ".join(sorted(known)) or "none"
        raise InvalidInput(
            f"there is no recipe {name!r}{near or f'; known: {every}; or give a file'}"
        )
    return known[name]


def read(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Return a recipe by file or name.

    The user's plugins may lie in the working folder or beside the file.
    """
    file = find(name)
    with search_path.searched(folders(file)):
        return load(file, overrides)


def folders(file: Path) -> list[Path]:
    """Return the folders of a recipe's own code."""
    return [Path.cwd(), file.resolve().parent]


def folder() -> Path:
    """Return the folder of recipes: of the working folder if present, else of the source tree."""
    here = Path("recipes")
    return here if here.is_dir() else Path(__file__).resolve().parents[2] / "recipes"


@app.command("ls")
def list_recipes(as_json: Json = False) -> None:
    """List the recipes."""
    rows = []
    for path in sorted(folder().glob("*.yaml")):
        recipe = read(str(path))
        rows.append(
            {
                "name": recipe.name,
                "description": recipe.description,
                "source": recipe.source,
                "file": str(path),
            }
        )
    emit(rows, as_json, ("name", "description", "source"))


@app.command("keys")
def list_keys(
    part: Annotated[
        str, typer.Argument(help="Only keys that begin so, such as optimise.lora.")
    ] = "",
    as_json: Json = False,
) -> None:
    """List the keys of a recipe: possible values, default and meaning."""
    rows = [asdict(key) for key in reference.listed() if key.key.startswith(part)]
    if not rows:
        raise InvalidInput(
            f"no key of a recipe begins with {part!r}; `banyan recipes keys` lists all"
        )
    emit(rows, as_json, ("key", "takes", "default", "meaning"))


@app.command("show")
def show(name: Annotated[str, typer.Argument(help="Name or file.")], as_json: Json = False) -> None:
    """Show a recipe with every default filled in."""
    recipe = read(name).model_dump(mode="json")
    if as_json:
        emit(recipe, True)
    else:
        emit_yaml(recipe)
