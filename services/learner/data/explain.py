"""Advantages as people read them: one line a segment. Pure.

A segment's line holds the leaves below it that take part, the mean of their advantages on its tokens, and the sums of the
positive and of the negative ones over those paths, unweighted. A node-valued advantage counts once for each path. A path
that leaves a segment before its first token holds none of it, and is none of its paths.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from banyan.plugins import Advantages
from banyan.view import TreeView
from services.learner.data.credit import Credit


@dataclass(frozen=True, slots=True)
class Line:
    """What is said of one segment; no advantage where no leaf below takes part."""

    segment: bytes
    paths: int
    advantage: float | None
    positive: float
    negative: float


def lines(credit: Credit, tree: int) -> Iterator[Line]:
    """One line for each segment of a group's tree-th tree, in the order in which they came."""
    view, said = credit.group.trees[tree], credit.advantages
    taken = [int(leaf) for leaf in np.flatnonzero(np.isfinite(said.leaf_G_L[tree]))]
    factor_N, values = _factors(said, tree), dict[bytes, list[float]]()
    for leaf in taken:
        for segment, value in _along(view, said, tree, leaf, factor_N):
            values.setdefault(segment, []).append(value)
    for segment in view.tree.segments:
        yield _line(segment, values.get(segment, []))


def _line(segment: bytes, values: list[float]) -> Line:
    if not values:
        return Line(segment, 0, None, 0.0, 0.0)
    value_P = np.array(values)
    positive, negative = np.maximum(value_P, 0.0).sum(), np.minimum(value_P, 0.0).sum()
    return Line(segment, len(values), float(value_P.mean()), float(positive), float(negative))


Factors = Sequence[float] | None


def _factors(said: Advantages, tree: int) -> Factors:
    """What the tokens of each node are multiplied by, in the mean; none where all advantages are those of leaves."""
    if said.factor_G_N_T is not None:
        return [
            float(factor_T.mean()) if len(factor_T) else 1.0 for factor_T in said.factor_G_N_T[tree]
        ]
    return None if said.node_G_N is None else [1.0] * len(said.node_G_N[tree])


def _along(
    view: TreeView, said: Advantages, tree: int, leaf: int, factor_N: Factors
) -> Iterator[tuple[bytes, float]]:
    """The segments of a leaf's path, each with the mean advantage of its tokens on that path."""
    whole = float(said.leaf_G_L[tree][leaf])
    held: dict[bytes, list[tuple[float, int]]] = {}
    if factor_N is not None:
        value_N = None if said.node_G_N is None else said.node_G_N[tree]
        for index in view.path(leaf):
            node, value = view.nodes[index], whole if value_N is None else float(value_N[index])
            held.setdefault(node.segment.id, []).append((value * factor_N[index], len(node)))
    for segment, end in view.tree.pieces(view.leaves_L[leaf].segment, view.leaves_L[leaf].end):
        if end or not len(segment):
            yield segment.id, _mean(held.get(segment.id, []), whole)


def _mean(parts: list[tuple[float, int]], otherwise: float) -> float:
    """Mean of values by tokens; that of one value is the value."""
    if len(parts) < 2:
        return parts[0][0] if parts else otherwise
    return float(
        np.average([value for value, _ in parts], weights=[max(tokens, 0) for _, tokens in parts])
    )
