"""`banyan trees`: list, show as a tree, draw as a picture, export as JSON lines."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.tree import Tree as RichTree

from banyan.cli.options import DEFAULT_STATE, Json, State
from banyan.cli.render.console import emit, emit_json, emit_text, err, out, stream
from banyan.cli.store import reading
from banyan.client import Client
from banyan.errors import InvalidInput, NotFound
from banyan.policy import batch_of
from banyan.recipe import Recipe
from banyan.render import tree_picture, tree_text
from banyan.render.tree_svg import drawn
from banyan.v1 import tree_pb2
from banyan.wire import plain_data
from banyan.wire.node_advantages import group_ids, node_advantages, view_of

app = typer.Typer(help="List, show, draw and export trees.", no_args_is_help=True)
TreeId = Annotated[
    str,
    typer.Argument(
        metavar="TREE", help="Id of the tree in hex, or a unique beginning of at least 8 digits."
    ),
]


@app.command("ls")
def list_trees(
    run_id: Annotated[str, typer.Argument(metavar="[RUN]", help="Run; all runs if left out.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most trees that are listed.")] = 20,
    evaluations: Annotated[
        bool, typer.Option("--eval", help="List trees of evaluations (purpose EVAL), too.")
    ] = False,
    step: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2**32 - 1,
            help="Only trees that this training step of the run used, replayed ones included.",
        ),
    ] = None,
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """List training trees, newest first."""
    if step is not None and not run_id:
        raise InvalidInput(f"--step {step} is of no run: name the run, as banyan trees ls RUN")
    chosen: dict[str, Any] = {} if evaluations else {"purpose": tree_pb2.TREE_PURPOSE_TRAIN}
    chosen |= {} if step is None else {"batch": batch_of(step)}
    with reading(state) as client:
        newest = client.trees(client.run(run_id).run_id if run_id else "", limit + 1, **chosen)
    rows = [plain_data.tree_summary(tree) for tree in newest[:limit]]
    columns = (
        "tree_id",
        "state",
        "leaves",
        "sampled_tokens",
        "mean_reward",
        "policy_step",
        "label",
        "reason",
    )
    emit(
        [row | ({} if as_json else {"tree_id": row["tree_id"][:16]}) for row in rows],
        as_json,
        columns,
    )
    if len(newest) > limit:
        err.print(
            f"these are the newest {limit}; there are older ones: --limit shows more", markup=False
        )
    if not newest and step is not None:
        err.print(f"no batch of step {step} is stored", markup=False)
    elif not newest and not evaluations:
        err.print("--eval lists the trees of evaluations, too", markup=False)


@app.command("show")
def show(
    name: TreeId,
    plans: Annotated[
        bool, typer.Option("--plans", help="Show the plans that grew it instead, as JSON lines.")
    ] = False,
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """Show a tree with text, reward and advantage per segment."""
    with reading(state) as client:
        tree = client.tree(hex_prefix(name), plans)
        check_prefix(name, tree.spec.tree_id, "tree")
        if plans:
            for plan in tree.plans:
                emit_json(plain_data.plan(plan))
            return
        if as_json:
            lines = client.export(tree.spec.run_id, tree_ids=[tree.spec.tree_id])
            stream([next(iter(lines))])
            return
        recipe = Recipe.model_validate_json(client.run(tree.spec.run_id).recipe_json, strict=False)
        group = group_of(client, tree)
    out.print(render(tree, recipe, group))


@app.command("draw")
def draw(
    name: TreeId,
    file: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write, or replace; else printed."
        ),
    ] = None,
    state: State = DEFAULT_STATE,
) -> None:
    """Draw a tree as an SVG picture: a box per branch, coloured by its advantage.

    Green is better than what the branch is compared with, red is worse, grey is neither.
    """
    with reading(state) as client:
        tree = client.tree(hex_prefix(name))
        check_prefix(name, tree.spec.tree_id, "tree")
        recipe = Recipe.model_validate_json(client.run(tree.spec.run_id).recipe_json, strict=False)
        group = group_of(client, tree)
    view = view_of(tree)
    lines = tree_picture.lines(view, advantages_of(tree, recipe, group))
    picture = drawn(lines, f"Tree {tree.spec.tree_id.hex()[:16]} of {tree.spec.run_id}")
    if file is None:
        emit_text(picture)
    else:
        file.write_text(picture, encoding="utf-8")


@app.command("export")
def export(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of the run, or its beginning.")],
    limit: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Most trees that are printed; 0 for all.")
    ] = 0,
    state: State = DEFAULT_STATE,
    as_json: Annotated[
        bool, typer.Option("--json", help="As without it: the lines are JSON.")
    ] = False,
) -> None:
    """Print trees as JSON lines, one tree a line, in order of opening."""
    with reading(state) as client:
        stream(client.export(client.run(run_id).run_id, limit=limit))


def hex_prefix(text: str, printed_by: str = "banyan trees ls prints them") -> bytes:
    """Return the bytes of a hex id or of its beginning.

    Raises InvalidInput with the form of an id and the command that prints them.
    """
    try:
        value = bytes.fromhex(text if len(text) % 2 == 0 else text[:-1])
    except ValueError:
        raise InvalidInput(f"{text!r} is not an id: ids are hex digits, as {printed_by}") from None
    if not 4 <= len(value) <= 32:
        raise InvalidInput(f"{text!r} must have 8 to 64 hex digits")
    return value


def check_prefix(text: str, full_id: bytes, what: str) -> None:
    """Raise NotFound if an odd last digit, which a search by bytes ignores, does not match."""
    if not full_id.hex().startswith(text.lower()):
        raise NotFound(f"there is no {what} {text}")


def group_of(client: Client, tree: tree_pb2.Tree) -> list[tree_pb2.Tree]:
    """Return all trees of a tree's group. Their ids follow from its own facts."""
    ids = group_ids(tree.spec)
    return list(client.whole_trees(tree.spec.run_id, ids)) if len(ids) > 1 else [tree]


def render(
    tree: tree_pb2.Tree, recipe: Recipe, group: list[tree_pb2.Tree], longest: int | None = None
) -> RichTree:
    """Return a tree for the terminal: text, reward and advantage per node.

    longest: as in banyan.render.tree_text
    """
    return tree_text.render(tree, advantages_of(tree, recipe, group), longest)


def advantages_of(
    tree: tree_pb2.Tree, recipe: Recipe, group: list[tree_pb2.Tree]
) -> dict[int, float]:
    """Return what `node_advantages` does; say why and return none where the estimator fails."""
    try:
        return node_advantages(tree, recipe, group)
    except Exception as error:  # foreign estimators raise anything; the tree is still useful
        err.print(f"no advantages: {type(error).__name__}: {error}", markup=False, soft_wrap=True)
        return {}
