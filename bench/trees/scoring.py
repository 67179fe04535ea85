"""Scorers of a recipe as a verifier takes them: one of training trees, one of evaluations.

A scorer of whole groups sees all completions of a group, by index of their tree and then from left
to right, once all its trees are grown.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from banyan import order, registry
from banyan.errors import NotReady
from banyan.plugins import Scored
from banyan.recipe import Filter, Recipe
from banyan.tree import Leaf, Tree
from banyan.v1 import tree_pb2


class Scorers:
    """The scorer of the training trees, and that of the evaluations.

    of_training: the first

    Raises NotReady for several scorers of one tree, whose rewards the store would join.
    """

    def __init__(self, recipe: Recipe) -> None:
        for names in (recipe.scorers, recipe.eval_scorers):
            if len(names) > 1:
                raise NotReady(
                    f"recipe {recipe.name} scores with {', '.join(names)}: run it with services"
                )
        self.of_training = _built(recipe.scorers[0], recipe.filter)
        self._truth = _built(recipe.eval_scorers[0], recipe.eval.filter or recipe.filter)

    def of(self, spec: tree_pb2.TreeSpec) -> Any:
        """Return the scorer of a tree."""
        evaluates = spec.purpose == tree_pb2.TREE_PURPOSE_EVAL
        return self._truth if evaluates else self.of_training


def _built(name: str, filters: Sequence[Filter]) -> Any:
    return registry.build("filter", name, filters[0].settings if filters else {})


def together(scorer: Any) -> bool:
    """Return whether a scorer scores all leaves of a group together."""
    return hasattr(scorer, "score_group")


def value(score: object) -> float:
    """Return the value of a score. Raises RuntimeError without one."""
    if not isinstance(score, Scored):
        raise RuntimeError(f"a completion has no score: {score}")
    return score.value


def left_to_right(tree: Tree, leaves: Iterable[Leaf]) -> list[Leaf]:
    """Return the leaves of a tree from left to right."""
    paths = order.paths(tree)
    return sorted(leaves, key=lambda leaf: order.at(paths, leaf.segment, leaf.end))
