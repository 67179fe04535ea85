"""Stored trees as an estimator gets them: with the rewards of their leaves and their facts."""

from banyan.credit.estimate import ScoredTree
from banyan.v1 import tree_pb2
from banyan.wire.segments import (
    facts_from_wire,
    leaves_from_wire,
    rewards_from_wire,
    tree_from_wire,
)
from banyan.wire.weights import weights_of


def scored_tree(message: tree_pb2.Tree) -> ScoredTree:
    """Return a stored tree, its leaves in the order of a depth-first walk.

    Floating-point sums must not depend on the order in which scores arrived.
    """
    return ScoredTree(
        tree=tree_from_wire(message),
        leaves=leaves_from_wire(message),
        rewards=rewards_from_wire(
            message.scores, len(message.spec.scorers), weights_of(message.spec)
        ),
        facts=facts_from_wire(message),
    )
