"""`banyan trees`: list, show as a tree, draw as a picture, export as JSON lines."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.tree import Tree as RichTree

from banyan.cli.options import DEFAULT_STATE, Json, State
from banyan.cli.render import leaf_scores
from banyan.cli.render.console import emit, emit_json, emit_text, err, out, stream
from banyan.cli.render.tree_svg import Line, drawn
from banyan.cli.store import reading
from banyan.client import Client
from banyan.errors import InvalidInput, NotFound
from banyan.recipe import Recipe
from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.view import Node, TreeView
from banyan.wire import plain_data
from banyan.wire.node_advantages import group_ids, node_advantages, view_of

app = typer.Typer(help="Trees.", no_args_is_help=True)
TreeId = Annotated[
    str,
    typer.Argument(
        metavar="TREE", help="Id of the tree in hex, or a unique beginning of at least 8 digits."
    ),
]


@app.command("ls")
def list_trees(
    run_id: Annotated[str, typer.Argument(help="Run; all runs if left out.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most trees that are listed.")] = 20,
    evaluations: Annotated[
        bool, typer.Option("--eval", help="List trees of evaluations (purpose EVAL), too.")
    ] = False,
    state: State = DEFAULT_STATE,
    as_json: Json = False,
) -> None:
    """List training trees, newest first."""
    purpose = {} if evaluations else {"purpose": tree_pb2.TREE_PURPOSE_TRAIN}
    with reading(state) as client:
        newest = client.trees(client.run(run_id).run_id if run_id else "", limit + 1, **purpose)
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
    if not newest and not evaluations:
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
    lines = picture_lines(view, advantages_of(tree, recipe, group))
    picture = drawn(lines, f"Tree {tree.spec.tree_id.hex()[:16]} of {tree.spec.run_id}")
    if file is None:
        emit_text(picture)
    else:
        file.write_text(picture, encoding="utf-8")


@app.command("export")
def export(
    run_id: Annotated[str, typer.Argument(help="Run.")],
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

    longest: if given, segments that follow each other without a fork are one line, of whose text so
        many last characters are shown at most
    """
    view = view_of(tree)
    advantages = advantages_of(tree, recipe, group)
    branches: dict[int, RichTree] = {}  # by node
    scores, later = leaf_scores.of_tree(tree), leaf_scores.later(tree)
    for run in [[node] for node in view.nodes] if longest is None else runs(view, advantages):
        node = run[-1]
        text = _label(run, view, advantages, scores, longest)
        if node.leaf is not None:  # each of these on a line of its own
            text = "\n".join([text, *_dim(later.get(view.leaves_L[node.leaf], ()))])
        above = run[0].parent
        branches[node.index] = RichTree(text) if above < 0 else branches[above].add(text)
    return branches[view.nodes[0].index]


def picture_lines(view: TreeView, advantages: Mapping[int, float]) -> list[Line]:
    """Return a tree's boxes: segments that follow each other without a fork are one."""
    lines: list[Line] = []
    places = {-1: -1}  # line by the last node of its run
    for run in runs(view, advantages):
        node = run[-1]
        places[node.index] = len(lines)
        lines.append(
            Line(
                text="".join(_text(part) for part in run),
                parent=places[run[0].parent],
                value=node.value if node.paths else None,
                reward=None if node.leaf is None else float(view.rewards_L[node.leaf]),
                advantage=advantages.get(node.index) if node.trained else None,
            )
        )
    return lines


def runs(view: TreeView, advantages: Mapping[int, float]) -> list[list[Node]]:
    """Return the nodes in their order, those that follow each other without a fork together.

    The prompt stays alone, and so does what has another advantage or a reward of its own.
    """
    children = Counter(node.parent for node in view.nodes)
    found: dict[int, list[Node]] = {}  # by last node
    for node in view.nodes:
        above = node.parent
        follows = (
            above > 0
            and children[above] == 1
            and view.nodes[above].leaf is None
            and advantages.get(above) == advantages.get(node.index)
            and _own_reward(view.nodes[above], view) is None
        )
        found[node.index] = [*(found.pop(above) if follows else ()), node]
    return list(found.values())


def advantages_of(
    tree: tree_pb2.Tree, recipe: Recipe, group: list[tree_pb2.Tree]
) -> dict[int, float]:
    """Return what `node_advantages` does; say why and return none where the estimator fails."""
    try:
        return node_advantages(tree, recipe, group)
    except Exception as error:  # foreign estimators raise anything; the tree is still useful
        err.print(f"no advantages: {type(error).__name__}: {error}", markup=False, soft_wrap=True)
        return {}


def _label(
    run: Sequence[Node],
    view: TreeView,
    advantages: Mapping[int, float],
    scores: dict[Leaf, list[str]],
    longest: int | None,
) -> str:
    node, text = run[-1], "".join(_text(part) for part in run)
    text = json.dumps(_shortened(text, longest), ensure_ascii=False)
    parts: list[Any] = [
        f"[dim]{run[0].segment.id.hex()[:8]}[/dim] {text.replace('[', chr(92) + '[')}"
    ]
    if node.leaf is not None:
        reward = view.rewards_L[node.leaf]
        parts.append(
            "[yellow]unscorable[/yellow]" if reward != reward else f"reward [bold]{reward:g}[/bold]"
        )
    elif node.paths:
        parts.append(f"value {node.value:.3f}")
    own = _own_reward(node, view)
    if own is not None:
        parts.append(f"own reward [bold]{own:g}[/bold]")
    if node.trained and node.index in advantages:
        value = advantages[node.index]
        colour = "green" if value > 0 else "red" if value < 0 else "dim"
        parts.append(f"advantage [{colour}]{value:+.3f}[/{colour}]")
    if node.leaf is not None:
        parts += _dim(scores.get(view.leaves_L[node.leaf], ()))
    return "  ".join(parts)


def _own_reward(node: Node, view: TreeView) -> float | None:
    return view.facts.rewards.get(Leaf(node.segment.id, node.stop))


def _dim(words: Iterable[str]) -> list[str]:
    return [f"[dim]{word.replace('[', chr(92) + '[')}[/dim]" for word in words]


def _shortened(text: str, longest: int | None) -> str:
    """Return a text, or its last characters: a prompt asks at its end."""
    return text if longest is None or len(text) <= longest else f"…{text[1 - longest :]}"


def _text(node: Node) -> str:
    """Return the text of a node: the segment's, with the range of the node's tokens if a part."""
    if (node.start, node.stop) == (0, len(node.segment)):
        return node.segment.text
    return f"{node.segment.text} (tokens {node.start}..{node.stop})"
