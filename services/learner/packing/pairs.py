"""Pairs of siblings: children of one node, sampled after the same tokens, one of them better.

A child's worth is its own advantage if the estimator gives advantages to nodes, else the mean over
the trained leaves below it. Pure numpy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from banyan.view import TreeView
from services.learner.packing import unroll
from services.learner.packing.loss_targets import LossTargets
from services.learner.packing.unroll import Floats, Path, TreePart

Pair = tuple[int, int]  # nodes: the chosen, the rejected


def pairs(
    view: TreeView, leaf_L: Floats, node_N: Floats | None, targets: LossTargets
) -> list[Pair]:
    """Return the pairs of a tree, forks in DFS order, better children first."""
    worth_N = _worth(view, leaf_L, node_N)
    chosen_pairs: list[Pair] = []
    for node in view.nodes:
        comparable = [
            i
            for i in node.children
            if np.isfinite(worth_N[i]) and view.nodes[i].trained and len(view.nodes[i])
        ]
        ranked = sorted(comparable, key=lambda i: (-worth_N[i], i))
        for better in ranked[:1] if targets.pairs == "best" else ranked:
            chosen_pairs += [
                (better, worse)
                for worse in ranked
                if worth_N[better] - worth_N[worse] >= targets.margin
            ]
    return chosen_pairs


def _worth(view: TreeView, leaf_L: Floats, node_N: Floats | None) -> Floats:
    """Return the worth of each node; nan for one without a trained leaf below it."""
    total_N, count_N = np.zeros(len(view.nodes)), np.zeros(len(view.nodes))
    for leaf in unroll.trained_leaves(leaf_L):
        total_N[view.path(leaf)] += leaf_L[leaf]
        count_N[view.path(leaf)] += 1
    worth_N = total_N / np.maximum(count_N, 1) if node_N is None else node_N
    return np.where(count_N > 0, worth_N, np.nan)


def parts(
    view: TreeView,
    leaf_L: Floats,
    node_N: Floats | None,
    *,
    policy: bytes,
    budget: int,
    targets: LossTargets,
) -> Iterator[TreePart]:
    """Yield the pairs of a tree in parts whose unique tokens fit the budget.

    A pair is never cut. `policy`: digest of the weights in training.
    """
    nodes: set[int] = set()
    run: list[Pair] = []
    for pair in pairs(view, leaf_L, node_N, targets):
        needed = {node for child in pair for node in _ancestry(view, child)}
        if run and sum(len(view.nodes[i]) for i in nodes | needed) > budget:
            yield _part(view, sorted(nodes), run, policy)
            nodes, run = set(), []
        nodes |= needed
        run.append(pair)
    if run:
        yield _part(view, sorted(nodes), run, policy)


def _ancestry(view: TreeView, node: int) -> list[int]:
    """Return the node and those above it."""
    nodes = []
    while node >= 0:
        nodes.append(node)
        node = view.nodes[node].parent
    return nodes


def _part(view: TreeView, order: Sequence[int], run: Sequence[Pair], policy: bytes) -> TreePart:
    stretches = unroll.node_stretches(view, order, policy)
    sides = [
        _side(stretches[node], sign)
        for pair in run
        for node, sign in zip(pair, (1.0, -1.0), strict=True)
    ]
    return unroll.part_of(view, order, sides)


def _side(stretch: Path, sign: float) -> Path:
    count = len(stretch.token_T)
    return replace(stretch, advantage_T=np.full(count, sign), share_T=np.ones(count))
