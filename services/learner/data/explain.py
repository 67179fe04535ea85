"""Advantages in a form for people: one line per segment. Pure.

The line of a segment covers the leaves below it that take part: the mean of their advantages on its
tokens, and the sums of the positive and of the negative ones over those paths, unweighted. A
node-valued advantage counts once per path. A path that leaves a segment before its first token
holds none of it, and is not counted for it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from banyan.credit.estimate import Credit
from banyan.plugins import Advantages
from banyan.view import TreeView

Factors = Sequence[float] | None


@dataclass(frozen=True, slots=True)
class Line:
    """The advantages of one segment.

    segment: its id.
    paths: paths through it that take part.
    advantage: mean over these paths; None without any.
    positive, negative: sums over the paths of one sign.
    """

    segment: bytes
    paths: int
    advantage: float | None
    positive: float
    negative: float


def lines(credit: Credit, tree: int) -> Iterator[Line]:
    """Yield a line for each segment of a group's tree with this index, in order of arrival."""
    view, advantages = credit.group.trees[tree], credit.advantages
    factor_N = _mean_factors(advantages, tree)
    values: dict[bytes, list[float]] = {}
    for leaf in np.flatnonzero(np.isfinite(advantages.leaf_G_L[tree])):
        for segment, value in _along_path(view, advantages, tree, int(leaf), factor_N):
            values.setdefault(segment, []).append(value)
    for segment in view.tree.segments:
        yield _line(segment, values.get(segment, []))


def _line(segment: bytes, values: list[float]) -> Line:
    if not values:
        return Line(segment, paths=0, advantage=None, positive=0.0, negative=0.0)
    value_P = np.array(values)
    return Line(
        segment,
        paths=len(values),
        advantage=float(value_P.mean()),
        positive=float(np.maximum(value_P, 0.0).sum()),
        negative=float(np.minimum(value_P, 0.0).sum()),
    )


def _mean_factors(advantages: Advantages, tree: int) -> Factors:
    """Return the mean factor of each node's tokens; None if all advantages are those of leaves."""
    if advantages.factor_G_N_T is not None:
        return [
            float(factor_T.mean()) if len(factor_T) else 1.0
            for factor_T in advantages.factor_G_N_T[tree]
        ]
    return None if advantages.node_G_N is None else [1.0] * len(advantages.node_G_N[tree])


def _along_path(
    view: TreeView, advantages: Advantages, tree: int, leaf: int, factor_N: Factors
) -> Iterator[tuple[bytes, float]]:
    """Yield the segments of a leaf's path, each with the mean advantage of its tokens there."""
    leaf_value = float(advantages.leaf_G_L[tree][leaf])
    weighted: dict[bytes, list[tuple[float, int]]] = {}  # by segment: value, tokens
    if factor_N is not None:
        value_N = None if advantages.node_G_N is None else advantages.node_G_N[tree]
        for index in view.path(leaf):
            node = view.nodes[index]
            value = leaf_value if value_N is None else float(value_N[index])
            weighted.setdefault(node.segment.id, []).append((value * factor_N[index], len(node)))
    for segment, end in view.tree.pieces(view.leaves_L[leaf].segment, view.leaves_L[leaf].end):
        if end or not len(segment):
            yield segment.id, _weighted_mean(weighted.get(segment.id, []), leaf_value)


def _weighted_mean(weighted: list[tuple[float, int]], default: float) -> float:
    """Return the mean by tokens; a single value exactly as it is, and `default` for none."""
    if len(weighted) < 2:
        return weighted[0][0] if weighted else default
    values = [value for value, _ in weighted]
    return float(np.average(values, weights=[max(tokens, 0) for _, tokens in weighted]))
