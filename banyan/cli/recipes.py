"""`banyan recipes`: the recipes that come with Banyan, resolved with their defaults."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from banyan.cli.options import Json
from banyan.cli.render.console import emit, emit_yaml, err
from banyan.cli.train import search_path
from banyan.errors import InvalidInput
from banyan.recipe import Recipe, reference
from banyan.recipe_loader import shipped
from banyan.recipe_loader.kinds import KINDS, kind
from banyan.recipe_loader.load import load

app = typer.Typer(
    help="List and show the recipes that come with Banyan, and all keys of a recipe.",
    no_args_is_help=True,
)


def find(name: str) -> Path:
    """Return a recipe's file, by path or by name from the folder of recipes."""
    path = Path(name)
    if path.exists():
        return path
    known = shipped.known()
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


@app.command("ls")
def list_recipes(
    only: Annotated[
        str, typer.Argument(metavar="[KIND]", help=f"Only those of a kind: {', '.join(KINDS)}.")
    ] = "",
    as_json: Json = False,
) -> None:
    """List the recipes by kind; with KIND, those of a kind with their descriptions."""
    if only and only not in KINDS:
        raise InvalidInput(f"there is no kind {only!r} of recipes; known: {', '.join(KINDS)}")
    rows = [row for row in _rows() if only in ("", row["kind"])]
    if as_json:
        return emit(rows, True)
    if only:
        return emit(rows, False, ("name", "description"))
    kinds = [{"kind": kind, "recipes": _names(rows, kind), "about": KINDS[kind]} for kind in KINDS]
    emit(kinds, False, ("kind", "recipes", "about"))
    err.print("banyan recipes ls KIND describes those of a kind, banyan recipes show NAME one")


def _rows() -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "kind": kind(recipe := read(str(file))),
            "description": recipe.description,
            "source": recipe.source,
            "file": str(file),
        }
        for name, file in shipped.known().items()
    ]


def _names(rows: Sequence[Mapping[str, str]], kind: str) -> str:
    return ", ".join(row["name"] for row in rows if row["kind"] == kind)


@app.command("keys")
def list_keys(
    part: Annotated[
        str,
        typer.Argument(metavar="[KEY]", help="Only keys that begin so, such as optimise.lora."),
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
def show(
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="Name or file.")],
    as_json: Json = False,
) -> None:
    """Show a recipe with every default filled in."""
    recipe = read(name).model_dump(mode="json")
    if as_json:
        emit(recipe, True)
    else:
        emit_yaml(recipe)
