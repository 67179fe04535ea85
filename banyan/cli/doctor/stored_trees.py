"""Facts of a run's trees that a diagnosis reads from the store."""

from banyan.cli.doctor.tree_rules import GrownTree, RunTrees
from banyan.client import Client
from banyan.errors import BanyanError
from banyan.payoff.shape import Shape, shape_of
from banyan.payoff.tokens import tokens_of
from banyan.recipe import Recipe
from banyan.v1 import runstore_service_pb2 as rs
from banyan.v1 import tree_pb2
from banyan.wire.segments import leaves_from_wire, tree_from_wire

NEWEST = 64  # trees that are read: some steps of most recipes
_WHOLE = (
    tree_pb2.TREE_STATE_SCORING,
    tree_pb2.TREE_STATE_CLOSED,
    tree_pb2.TREE_STATE_CONSUMED,
)


def run_trees(client: Client, run: rs.Run, samples: rs.SampleCounts) -> RunTrees | None:
    """Return the facts of a run's trees; None if its tree policy is not judged by them."""
    shape = _shape(run.recipe_json)
    if shape is None or not shape.judged:
        return None
    shared = 1.0 - samples.unique_tokens / samples.path_tokens if samples.path_tokens else 0.0
    return RunTrees(shape=shape, newest=_newest(client, run.run_id), shared=shared)


def _newest(client: Client, run_id: str) -> list[GrownTree]:
    listed = client.trees(run_id, NEWEST, states=_WHOLE, purpose=tree_pb2.TREE_PURPOSE_TRAIN)
    steps = {summary.tree_id: summary.policy_step for summary in listed if summary.leaves}
    if not steps:  # a filter without ids would be one for all trees
        return []
    return [
        _grown(tree, steps[tree.spec.tree_id]) for tree in client.whole_trees(run_id, list(steps))
    ]


def _grown(message: tree_pb2.Tree, step: int) -> GrownTree:
    tree, leaves = tree_from_wire(message), leaves_from_wire(message)
    return GrownTree(
        group=message.spec.group_id,
        step=step,
        lengths=tuple(tree.answer_length(leaf.segment, leaf.end) for leaf in leaves),
        tokens=tokens_of(tree, leaves),
    )


def _shape(recipe_json: str) -> Shape | None:
    """Return the shape of a stored recipe's trees.

    None for a policy of the user's own, whose code a diagnosis does not run, and for a recipe of
    another version.
    """
    try:
        recipe = Recipe.model_validate_json(recipe_json, strict=False)
        return None if ":" in recipe.generate.policy else shape_of(recipe)
    except (BanyanError, ValueError):
        return None
