"""A stored tree as the boxes of a picture."""

from collections.abc import Mapping

from banyan.render.node_runs import runs, text_of
from banyan.render.tree_svg import Line
from banyan.view import TreeView


def lines(view: TreeView, advantages: Mapping[int, float]) -> list[Line]:
    """Return a tree's boxes: segments that follow each other without a fork are one."""
    drawn: list[Line] = []
    places = {-1: -1}  # line by the last node of its run
    for run in runs(view, advantages):
        node = run[-1]
        places[node.index] = len(drawn)
        drawn.append(
            Line(
                text="".join(text_of(part) for part in run),
                parent=places[run[0].parent],
                value=node.value if node.paths else None,
                reward=None if node.leaf is None else float(view.rewards_L[node.leaf]),
                advantage=advantages.get(node.index) if node.trained else None,
            )
        )
    return drawn
