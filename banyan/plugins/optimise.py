"""Estimators: the value of each leaf, or node, of a group's trees against the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from banyan.view import TreeView


@dataclass(frozen=True, slots=True)
class GroupTrees:
    """Trees of one row that are compared with each other, in order of index."""

    group_id: str
    trees: Sequence[TreeView]


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages of a group.

    leaf_G_L: [g][l] for each leaf of each tree; nan for leaves that take no part. All that a
        leaf-valued estimator fills.
    node_G_N: [g][n] of a node-valued estimator; holds for the node's tokens on every path
    skip: reason why the group teaches nothing (zero variance, too few leaves); empty if it does
    factor_G_N_T: [g][n] factor of the advantage at each of a node's tokens, in a shaped batch
    """

    leaf_G_L: tuple[npt.NDArray[np.float64], ...]
    node_G_N: tuple[npt.NDArray[np.float64], ...] | None = None
    skip: str = ""
    factor_G_N_T: tuple[Sequence[npt.NDArray[np.float64]], ...] | None = None


class Estimator(Protocol):
    """Estimator of the advantages of a group of trees.

    whiten: advantages are whitened over all trained path tokens of the batch
    factors: method (trees: Sequence[TreeView]) -> list[list[array]], called once for the batch with
        all trees that teach: the factor of each token of each node

    Its traits are those of `plugins.traits.EstimatorTraits`.
    """

    def estimate(self, group: GroupTrees) -> Advantages:
        """Return the group's advantages."""
        ...
