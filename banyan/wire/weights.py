"""Weights of scorers in specs of trees."""

import math
from collections.abc import Sequence

from banyan.errors import InvalidInput
from banyan.reward import EQUAL, Weights
from banyan.v1 import tree_pb2


def weights_of(spec: tree_pb2.TreeSpec) -> Weights:
    """Return the weights of a tree's scorers. Raises InvalidInput if they cannot be."""
    return by_name(spec.scorers, spec.scorer_weights)


def by_name(scorers: Sequence[str], weights: Sequence[float]) -> Weights:
    """Return weights by scorer, given in the order of the scorers; none mean that all are equal.

    Raises InvalidInput unless there is one for each, all are finite and one is above 0.
    """
    if not weights:
        return EQUAL
    if len(weights) != len(scorers):
        raise InvalidInput(f"{len(scorers)} scorers have {len(weights)} weights")
    if not all(map(math.isfinite, weights)) or max(weights) <= 0:
        raise InvalidInput(f"scorers have the weights {list(weights)}; one must be above 0")
    return dict(zip(scorers, weights, strict=True))
