"""Advantages multiplied token by token, where an estimator shapes the batch. Pure."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from banyan.segment import Kind
from banyan.view import Node, TreeView
from services.learner.packing.loss_targets import Taught
from services.learner.packing.unroll import Floats, Path, TreePart


def shaped(
    piece: TreePart,
    view: TreeView,
    leaves: Sequence[int],
    factor_N_T: Sequence[Floats],
    taught: Taught,
) -> TreePart:
    """The piece of the paths of `leaves`, with each advantage times its token's factor."""
    paths = (
        _shaped(p, view, leaf, factor_N_T, taught)
        for p, leaf in zip(piece.paths, leaves, strict=True)
    )
    return replace(piece, paths=tuple(paths))


def _shaped(
    path: Path, view: TreeView, leaf: int, factor_N_T: Sequence[Floats], taught: Taught
) -> Path:
    nodes = [i for i in view.path(leaf) if _taught(view.nodes[i], taught)]
    factor_T = np.concatenate([np.zeros(0), *(factor_N_T[i] for i in nodes)])
    behind_T = factor_T[
        len(factor_T) - len(path.token_T) :
    ]  # a path's very first token has nothing that predicts it
    return replace(path, advantage_T=path.advantage_T * behind_T)


def _taught(node: Node, taught: Taught) -> bool:
    return node.trained or (
        node.segment.kind is Kind.FORCED and node.segment.origin in taught.forced
    )
