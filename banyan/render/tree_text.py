"""A stored tree for the terminal: a line for each branch."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.tree import Tree as RichTree

from banyan.render import leaf_scores
from banyan.render.node_runs import own_reward, runs, text_of
from banyan.tree import Leaf
from banyan.v1 import tree_pb2
from banyan.view import Node, TreeView
from banyan.wire.node_advantages import view_of


def render(
    tree: tree_pb2.Tree, advantages: Mapping[int, float], longest: int | None = None
) -> RichTree:
    """Return a tree for the terminal: text, reward and advantage per node.

    advantages: by index of the node
    longest: if given, segments that follow each other without a fork are one line, of whose text so
        many last characters are shown at most
    """
    view = view_of(tree)
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


def _label(
    run: Sequence[Node],
    view: TreeView,
    advantages: Mapping[int, float],
    scores: dict[Leaf, list[str]],
    longest: int | None,
) -> str:
    node, text = run[-1], "".join(text_of(part) for part in run)
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
    own = own_reward(node, view)
    if own is not None:
        parts.append(f"own reward [bold]{own:g}[/bold]")
    if node.trained and node.index in advantages:
        value = advantages[node.index]
        colour = "green" if value > 0 else "red" if value < 0 else "dim"
        parts.append(f"advantage [{colour}]{value:+.3f}[/{colour}]")
    if node.leaf is not None:
        parts += _dim(scores.get(view.leaves_L[node.leaf], ()))
    return "  ".join(parts)


def _dim(words: Iterable[str]) -> list[str]:
    return [f"[dim]{word.replace('[', chr(92) + '[')}[/dim]" for word in words]


def _shortened(text: str, longest: int | None) -> str:
    """Return a text, or its last characters: a prompt asks at its end."""
    return text if longest is None or len(text) <= longest else f"…{text[1 - longest :]}"
