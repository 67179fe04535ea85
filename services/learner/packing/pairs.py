"""Pairs of siblings: children of one node, sampled after the same tokens, one better than the other. Pure numpy.

A child's worth is its own advantage where the estimator gives nodes one, else the mean over the trained leaves below it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from banyan.view import TreeView
from services.learner.packing import unroll
from services.learner.packing.loss_targets import Taught
from services.learner.packing.unroll import Floats, Path, TreePart

Pair = tuple[int, int]  # node that is chosen, node that is rejected


def pairs(view: TreeView, leaf_L: Floats, node_N: Floats | None, taught: Taught) -> list[Pair]:
    """The pairs of a tree, forks in DFS order; the better children first."""
    worth_N = _worth(view, leaf_L, node_N)
    found: list[Pair] = []
    for node in view.nodes:
        able = [
            i
            for i in node.children
            if np.isfinite(worth_N[i]) and view.nodes[i].trained and len(view.nodes[i])
        ]
        ranked = sorted(able, key=lambda i: (-worth_N[i], i))
        chosen = ranked[:1] if taught.pairs == "best" else ranked
        found += [
            (a, b) for a in chosen for b in ranked if worth_N[a] - worth_N[b] >= taught.margin
        ]
    return found


def _worth(view: TreeView, leaf_L: Floats, node_N: Floats | None) -> Floats:
    """Of each node; nan where no trained leaf is below it."""
    total, count = np.zeros(len(view.nodes)), np.zeros(len(view.nodes))
    for leaf in unroll.trained_leaves(leaf_L):
        total[view.path(leaf)] += leaf_L[leaf]
        count[view.path(leaf)] += 1
    worth_N = total if node_N is None else node_N
    return np.where(
        count > 0, worth_N / np.maximum(count, 1) if node_N is None else worth_N, np.nan
    )


def pieces(
    view: TreeView,
    leaf_L: Floats,
    node_N: Floats | None,
    policy: bytes,
    budget: int,
    taught: Taught,
) -> Iterator[TreePart]:
    """The pairs of a tree, cut into pieces whose unique tokens fit the budget. A pair is never cut."""
    held: set[int] = set()
    run: list[Pair] = []
    for pair in pairs(view, leaf_L, node_N, taught):
        needed = {node for child in pair for node in _above(view, child)}
        if run and sum(len(view.nodes[i]) for i in held | needed) > budget:
            yield _piece(view, sorted(held), run, policy)
            held, run = set(), []
        held |= needed
        run.append(pair)
    if run:
        yield _piece(view, sorted(held), run, policy)


def _above(view: TreeView, node: int) -> list[int]:
    """The node and those above it."""
    found = []
    while node >= 0:
        found.append(node)
        node = view.nodes[node].parent
    return found


def _piece(view: TreeView, order: Sequence[int], run: Sequence[Pair], policy: bytes) -> TreePart:
    facts = unroll.facts_of(view, order, policy)
    sides = [
        _side(facts[node], sign)
        for pair in run
        for node, sign in zip(pair, (1.0, -1.0), strict=True)
    ]
    return unroll.piece_of(view, order, sides)


def _side(facts: Path, sign: float) -> Path:
    count = len(facts.token_T)
    return replace(facts, advantage_T=np.full(count, sign), share_T=np.ones(count))
