"""A stored tree for people: its view, its group, and the advantages of its nodes."""

from collections.abc import Sequence

from banyan import registry
from banyan.credit.estimate import ScoredTree, estimate
from banyan.digest import tree_id
from banyan.plugins import Estimator
from banyan.recipe import Recipe
from banyan.v1 import tree_pb2
from banyan.view import TreeView
from banyan.wire.scored_tree import scored_tree
from banyan.wire.segments import (
    facts_from_wire,
    leaves_from_wire,
    rewards_from_wire,
    tree_from_wire,
)
from banyan.wire.weights import weights_of


def view_of(tree: tree_pb2.Tree) -> TreeView:
    """Return the TreeView of a stored tree."""
    rewards = rewards_from_wire(tree.scores, len(tree.spec.scorers), weights_of(tree.spec))
    return TreeView(tree_from_wire(tree), leaves_from_wire(tree), rewards, facts_from_wire(tree))


def group_ids(spec: tree_pb2.TreeSpec) -> list[bytes]:
    """Return the ids of the trees of a tree's group. They follow from its own facts."""
    if spec.group_size <= 1:
        return [spec.tree_id]
    return [
        tree_id(spec.run_id, spec.group_id, spec.row_digest, index)
        for index in range(spec.group_size)
    ]


def node_advantages(
    tree: tree_pb2.Tree,
    recipe: Recipe,
    group: Sequence[tree_pb2.Tree],
    estimator: Estimator | None = None,
) -> dict[int, float]:
    """Return the mean advantage of the scored paths through each node.

    The estimator runs on the tree's whole group, on rewards as scored, without any KL; without one
    it is the recipe's. Raise InvalidInput if it fails or returns something unusable.
    """
    members = compared(tree, group)
    mine = next(i for i, member in enumerate(members) if member.spec.tree_id == tree.spec.tree_id)
    return advantages_of(
        tree.spec.group_id, [scored_tree(member) for member in members], mine, recipe, estimator
    )


def compared(tree: tree_pb2.Tree, group: Sequence[tree_pb2.Tree]) -> list[tree_pb2.Tree]:
    """Return the trees that a tree is compared with, itself included, in order of index.

    Dropped ones are left out, as in training.
    """
    dropped, mine = tree_pb2.TREE_STATE_DROPPED, tree.spec.tree_id
    kept = [t for t in group if t.state != dropped or t.spec.tree_id == mine]
    return sorted(kept, key=lambda t: t.spec.index) or [tree]


def advantages_of(
    group_id: str,
    scored: Sequence[ScoredTree],
    mine: int,
    recipe: Recipe,
    estimator: Estimator | None = None,
) -> dict[int, float]:
    """Return what `node_advantages` does for one of a group's trees.

    scored: the group in order of index
    mine: position of the tree among them
    """
    if estimator is None:
        optimise = recipe.optimise
        estimator = registry.build("optimise", optimise.advantage, optimise.advantage_settings)
    credited = estimate(group_id, scored, estimator, lambda _tree, _leaf: False)
    result, view = credited.advantages, credited.group.trees[mine]
    sums: dict[int, list[float]] = {}
    for leaf in view.scored_L:
        for node in view.path(leaf):
            value = result.node_G_N[mine][node] if result.node_G_N else result.leaf_G_L[mine][leaf]
            sums.setdefault(node, []).extend([float(value)] if value == value else [])
    return {node: sum(values) / len(values) for node, values in sums.items() if values}
