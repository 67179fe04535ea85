"""Multiplies advantages token by token, for an estimator that shapes the batch. Pure."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from banyan.segment import Kind
from banyan.view import Node, TreeView
from services.learner.packing.loss_targets import LossTargets
from services.learner.packing.unroll import Floats, Path, TreePart


def shaped(
    part: TreePart,
    view: TreeView,
    leaves: Sequence[int],
    factor_N_T: Sequence[Floats],
    targets: LossTargets,
) -> TreePart:
    """Return the part of the paths of `leaves`, each advantage times the factor of its token."""
    paths = [
        _shaped(path, view, leaf, factor_N_T, targets)
        for path, leaf in zip(part.paths, leaves, strict=True)
    ]
    return replace(part, paths=tuple(paths))


def _shaped(
    path: Path, view: TreeView, leaf: int, factor_N_T: Sequence[Floats], targets: LossTargets
) -> Path:
    nodes = [i for i in view.path(leaf) if _is_target(view.nodes[i], targets)]
    factor_T = np.concatenate([np.zeros(0), *(factor_N_T[i] for i in nodes)])
    # The very first token of a path has nothing that predicts it.
    predicted_T = factor_T[len(factor_T) - len(path.token_T) :]
    return replace(path, advantage_T=path.advantage_T * predicted_T)


def _is_target(node: Node, targets: LossTargets) -> bool:
    return node.trained or (
        node.segment.kind is Kind.FORCED and node.segment.origin in targets.forced
    )
