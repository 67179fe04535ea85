"""Estimators: what each leaf, or node, of a group's trees is worth against the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from banyan.view import TreeView


@dataclass(frozen=True, slots=True)
class GroupTrees:
    """The trees of one prompt row that are compared with each other, in order of index."""

    group_id: str
    trees: Sequence[TreeView]


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantage of each leaf of each tree of a group: `leaf_G_L[g][l]`, nan for leaves that take no part.

    A leaf-valued estimator fills `leaf_G_L` only. A node-valued one also fills `node_G_N[g][n]`, which then holds for the
    node's tokens on every path. `skip` says why the group teaches nothing (zero variance, too few leaves); empty if it does.
    `factor_G_N_T[g][n]`: what the advantage is multiplied by at each of a node's tokens, where the batch was shaped.
    """

    leaf_G_L: tuple[npt.NDArray[np.float64], ...]
    node_G_N: tuple[npt.NDArray[np.float64], ...] | None = None
    skip: str = ""
    factor_G_N_T: tuple[Sequence[npt.NDArray[np.float64]], ...] | None = None


class Estimator(Protocol):
    """Estimates advantages of a group of trees.

    An estimator with `whiten = True` asks that advantages are whitened over all trained path tokens of the batch. One with
    `factors(trees: Sequence[TreeView]) -> list[list[array]]` is asked once for the batch, with all trees that teach: the
    factor of each token of each node. `needs_logprobs`: it reads the behaviour log-probs of sampled tokens; `needs_entropy`
    their entropies. `needs`: what else it must know of a tree (banyan.facts: STEPS, INSIDE, attribute, part); a recipe in
    which neither the tree policy's `gives` nor the `parts` of a scorer say so is refused. `by_steps = True`: rewards of
    places inside a path count for it where there are any, so a path on which one of them could not be scored takes no part;
    so it is for an estimator that needs STEPS or INSIDE.
    """

    def estimate(self, group: GroupTrees) -> Advantages:
        """The group's advantages."""
        ...
