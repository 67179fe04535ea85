"""`banyan recipes`: the recipes that come with Banyan, and what one resolves to."""

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
    """A recipe by file, or by name from the folder of recipes."""
    path = Path(name)
    if path.exists() or path.suffix in (".yaml", ".yml"):
        return path
    known = {p.stem: p for p in folder().glob("*.yaml")}
    if name not in known:
        near = "".join(
            f"; did you mean {one}?"
            for one in difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        )
        every = ", ".join(sorted(known)) or "none"
        raise InvalidInput(
            f"there is no recipe {name!r}{near or f'; known: {every}; or give a file'}"
        )
    return known[name]


def read(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by file or name. The user's plugins may lie in the working folder or beside it."""
    file = find(name)
    with search_path.searched(folders(file)):
        return load(file, overrides)


def folders(file: Path) -> list[Path]:
    """Where a recipe's own code is looked for."""
    return [Path.cwd(), file.resolve().parent]


def folder() -> Path:
    """The folder of recipes: of the working folder if it has one, else of the source tree."""
    here = Path("recipes")
    return here if here.is_dir() else Path(__file__).resolve().parents[2] / "recipes"


@app.command("ls")
def list_recipes(as_json: Json = False) -> None:
    """Lists the recipes."""
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
    """Lists the keys of a recipe: what each takes, its default and its meaning."""
    rows = [asdict(key) for key in reference.listed() if key.key.startswith(part)]
    if not rows:
        raise InvalidInput(
            f"no key of a recipe begins with {part!r}; `banyan recipes keys` lists all"
        )
    emit(rows, as_json, ("key", "takes", "default", "meaning"))


@app.command("show")
def show(name: Annotated[str, typer.Argument(help="Name or file.")], as_json: Json = False) -> None:
    """Shows a recipe with every default filled in."""
    recipe = read(name).model_dump(mode="json")
    if as_json:
        emit(recipe, True)
    else:
        emit_yaml(recipe)
